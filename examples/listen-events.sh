#!/usr/bin/env bash
# Listens with curl only: an event stream, one event per line. The arguments are topic patterns.
# Reads HUBRELAY_URL, HUBRELAY_KEY, HUBRELAY_HUB. To resume, send the last id as Last-Event-ID.
set -euo pipefail
topics=$(IFS=,; echo "$*")
curl -sSN --fail-with-body --get "$HUBRELAY_URL/v1/hubs/current/notifications" --data-urlencode "topics=$topics" \
  -H "Accept: text/event-stream" -H "Authorization: Bearer $HUBRELAY_KEY" -H "X-Hub-Id: $HUBRELAY_HUB" |
  sed -un -e 's/^data: //p' -e '/^{"error":/w /dev/stderr'

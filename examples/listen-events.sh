#!/bin/sh
# Listens with nothing but curl: an event stream, one notification a line. The arguments are topic patterns.
# Reads HUBRELAY_URL, HUBRELAY_KEY, HUBRELAY_HUB. To go on where it stopped, send the last id as Last-Event-ID.
set -eu
topics=$(IFS=,; echo "$*")
curl -sSfN --get "$HUBRELAY_URL/v1/hubs/current/notifications" --data-urlencode "topics=$topics" \
  -H "Accept: text/event-stream" -H "Authorization: Bearer $HUBRELAY_KEY" -H "X-Hub-Id: $HUBRELAY_HUB" |
  sed -un 's/^data: //p'

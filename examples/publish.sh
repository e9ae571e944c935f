#!/usr/bin/env bash
# Publishes one event over HTTP with curl: publish.sh TOPIC [STATE [OBJECT_ID]]
# Reads HUBRELAY_URL, HUBRELAY_KEY (needs the capability notifications-publish) and HUBRELAY_HUB.
set -euo pipefail

topic=${1:?usage: $0 TOPIC [STATE [OBJECT_ID]]}
url=${HUBRELAY_URL:-http://127.0.0.1:8080}
object="\"state\": \"${2:-}\""
[ -z "${3:-}" ] || object+=", \"id\": \"$3\"" # the relay assigns an id by default

# The relay adds context.hub_id, and account_id from the key.
#
# An Idempotency-Key makes a repetition safe: requests with the same key within ten minutes are stored once. So curl can
# retry after a lost response.
curl --silent --show-error --fail-with-body --max-time 30 --retry 3 --retry-connrefused \
	"$url/v1/hubs/current/notifications" \
	--header "Authorization: Bearer ${HUBRELAY_KEY:?set HUBRELAY_KEY}" \
	--header "X-Hub-Id: ${HUBRELAY_HUB:?set HUBRELAY_HUB}" \
	--header "Content-Type: application/json" \
	--header "Idempotency-Key: $(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')" \
	--data @- <<JSON
{"topic": "$topic", "object": {$object}, "context": {}}
JSON
echo

#!/usr/bin/env bash
# Publishes one event through Redis, with redis-cli only: publish-redis.sh TOPIC [STATE [OBJECT_ID]]
# Reads HUBRELAY_HUB, HUBRELAY_SOCKET (of the embedded Redis; default ./hubrelay-data/redis.sock), and REDIS
# (arguments of redis-cli for any other Redis).
# The daemon moves rejected entries to the stream hubrelay:quarantine, with the reason.
set -euo pipefail

topic=${1:?usage: $0 TOPIC [STATE [OBJECT_ID]]}
hub=${HUBRELAY_HUB:?set HUBRELAY_HUB}
object="\"state\": \"${2:-}\""
[ -z "${3:-}" ] || object+=", \"id\": \"$3\"" # the relay assigns an id by default
data="{\"topic\": \"$topic\", \"object\": {$object}, \"context\": {\"hub_id\": \"$hub\"}}"

# -e: fail on an error of Redis, such as out of memory or a read-only replica.
read -ra redis <<<"${REDIS:--s ${HUBRELAY_SOCKET:-hubrelay-data/redis.sock}}"
redis-cli -e "${redis[@]}" XADD hubrelay:inbox '*' data "$data"

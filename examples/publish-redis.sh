#!/usr/bin/env bash
# Publishes one notification straight through Redis, with nothing but redis-cli: publish-redis.sh TOPIC [STATE [OBJECT_ID]]
# Reads HUBRELAY_HUB, HUBRELAY_SOCKET (the daemon's own Redis; ./hubrelay-data/redis.sock by default), and REDIS (arguments
# of redis-cli for any other Redis).
# What the daemon cannot accept ends in the stream hubrelay:quarantine with its reason.
set -euo pipefail

topic=${1:?usage: $0 TOPIC [STATE [OBJECT_ID]]}
hub=${HUBRELAY_HUB:?set HUBRELAY_HUB}
object="\"state\": \"${2:-}\""
[ -z "${3:-}" ] || object+=", \"id\": \"$3\"" # without an id the relay gives one
data="{\"topic\": \"$topic\", \"object\": {$object}, \"context\": {\"hub_id\": \"$hub\"}}"

# -e: an error of Redis (out of memory, read-only replica) is a failure of this command.
read -ra redis <<<"${REDIS:--s ${HUBRELAY_SOCKET:-hubrelay-data/redis.sock}}"
redis-cli -e "${redis[@]}" XADD hubrelay:inbox '*' data "$data"

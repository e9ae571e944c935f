-- Change the version. A full Redis accepts a write after a deletion, so operators can always pause a sink.
-- KEYS: version.
local version = next_version(redis.call('GET', KEYS[1]))
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], version)
return 1

-- Increment the number of changes. A full Redis accepts a write after a deletion, so operators can always pause a sink.
-- KEYS: number of changes.
local n = tonumber(redis.call('GET', KEYS[1]) or '0')
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], string.format('%.0f', n + 1))
return 1

-- Change the version, which is the time in milliseconds, or one more than before. So it does not repeat after a failover that
-- loses the latest changes. A full Redis accepts a write after a deletion, so operators can always pause a sink.
-- KEYS: version.
local n = tonumber(redis.call('GET', KEYS[1]) or '0')
redis.call('DEL', KEYS[1])
local t = redis.call('TIME')
redis.call('SET', KEYS[1], string.format('%.0f', math.max(n + 1, t[1] * 1000 + math.floor(t[2] / 1000))))
return 1

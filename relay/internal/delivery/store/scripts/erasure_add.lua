-- Record that an account is erased now, and remove erasures that are older than a day. A full Redis accepts a write after a
-- deletion. KEYS: erasures. ARGV: account. Returns the time in unix milliseconds.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local day = 86400000
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - day))
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('PEXPIRE', KEYS[1], day)
return now

-- Record that an account is erased now. A full Redis accepts a write after a deletion.
-- KEYS: erasures. ARGV: account.
local t = redis.call('TIME')
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)))
redis.call('EXPIRE', KEYS[1], 86400)
return 1

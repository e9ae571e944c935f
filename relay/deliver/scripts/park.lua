-- Park a delivery that is not parked yet: a repeat after a crash changes nothing.
-- KEYS: retry, parked. ARGV: id, milliseconds to wait, body.
local t = redis.call('TIME')
local due = t[1] * 1000 + math.floor(t[2] / 1000) + tonumber(ARGV[2])
local new = redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', due), ARGV[1])
return new

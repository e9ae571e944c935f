-- Stop all attempts of a rate for a time. They then start at an even pace, without a burst.
-- KEYS: rate. ARGV: microseconds to stop, interval in microseconds, burst.
redis.call('HDEL', KEYS[1], '') -- see retry_queue.lua
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local state = redis.call('HMGET', KEYS[1], 'tat', 'rest')
local cooldown_end = math.max(tonumber(state[2]) or 0, now + tonumber(ARGV[1]))
local tat = math.max(tonumber(state[1]) or 0, cooldown_end + (tonumber(ARGV[3]) - 1) * tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'tat', string.format('%.2f', tat), 'rest', string.format('%.0f', cooldown_end))
redis.call('PEXPIRE', KEYS[1], math.ceil((tat - now) / 1000) + 1)
return 1

-- End the cooldown of a rate. Attempts then start at an even pace, without a burst. A full Redis accepts the write after the
-- deletion. KEYS: rate. ARGV: interval in microseconds, burst.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if (tonumber(redis.call('HGET', KEYS[1], 'rest')) or 0) <= now then
  return 0
end
redis.call('DEL', KEYS[1])
local wait = (tonumber(ARGV[2]) - 1) * tonumber(ARGV[1])
if wait > 0 then
  redis.call('HSET', KEYS[1], 'tat', string.format('%.2f', now + wait))
  redis.call('PEXPIRE', KEYS[1], math.ceil(wait / 1000) + 1)
end
return 1

-- End the cooldown of a rate. Attempts then start at an even pace, without a burst. A full Redis accepts the write after the
-- deletion. KEYS: rate. ARGV: interval in microseconds, burst.
if redis.call('HDEL', KEYS[1], 'rest') == 0 then
  return 0
end
redis.call('DEL', KEYS[1])
local wait = (tonumber(ARGV[2]) - 1) * tonumber(ARGV[1])
if wait > 0 then
  local t = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'tat', string.format('%.2f', t[1] * 1000000 + t[2] + wait))
  redis.call('PEXPIRE', KEYS[1], math.ceil(wait / 1000) + 1)
end
return 1

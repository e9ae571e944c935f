-- Make a sink active. Each call stores another time of Redis, so nodes notice it even if the sink was active before.
-- KEYS: state. Returns 1 if it was disabled, also if it was paused after that.
local old = redis.call('HMGET', KEYS[1], 'state', 'disabled')
local t = redis.call('TIME')
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'resumed', string.format('%.0f', t[1] * 1000000 + t[2]))
if old[1] == 'disabled' or old[2] then
  return 1
end
return 0

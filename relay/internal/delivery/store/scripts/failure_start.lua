-- Store the time of the first failure since the last success. KEYS: failing. Returns the milliseconds since then.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local since = tonumber(redis.call('GET', KEYS[1]))
if not since then
  redis.call('DEL', KEYS[1]) -- see retry_queue.lua
  redis.call('SET', KEYS[1], string.format('%.0f', now))
  return 0
end
return math.max(0, now - since)

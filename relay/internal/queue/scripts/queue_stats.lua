-- Returns the length of a queue, and the age of its oldest entry in milliseconds, or -1 if the queue is empty.
-- KEYS: queue.
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not oldest then
  return {0, -1}
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
return {redis.call('XLEN', KEYS[1]), math.max(0, now - tonumber(string.match(oldest[1], '^%d+')))}

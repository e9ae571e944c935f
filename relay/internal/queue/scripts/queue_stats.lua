-- Returns the length of a queue, the age of its oldest entry in milliseconds, or -1 if the queue is empty, and 1 or 0 for
-- "the sink catches up with the log".
-- KEYS: queue, sink positions. ARGV: sink.
local position = redis.call('HGET', KEYS[2], ARGV[1])
local catchingUp = position and string.sub(position, 1, 1) ~= '+' and 1 or 0
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not oldest then
  return {0, -1, catchingUp}
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
return {redis.call('XLEN', KEYS[1]), math.max(0, now - tonumber(string.match(oldest[1], '^%d+'))), catchingUp}

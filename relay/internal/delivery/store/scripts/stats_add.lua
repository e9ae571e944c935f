-- Add to the statistics of a sink.
-- KEYS: stats. ARGV: 1 if something was delivered, last error or '' and its age in milliseconds, then names of
-- counters and what to add to each.
redis.call('HDEL', KEYS[1], '') -- see retry_queue.lua
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if ARGV[1] == '1' then
  redis.call('HSET', KEYS[1], 'last_success', string.format('%.0f', now))
end
if ARGV[2] ~= '' then
  local at = now - ARGV[3]
  -- Another node may have stored a later error.
  if at >= tonumber(redis.call('HGET', KEYS[1], 'last_error_at') or 0) then
    redis.call('HSET', KEYS[1], 'last_error', ARGV[2], 'last_error_at', string.format('%.0f', at))
  end
end
for a = 4, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[a], ARGV[a + 1])
end
return 1

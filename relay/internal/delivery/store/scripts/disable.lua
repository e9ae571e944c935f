-- Disable a sink unless it is paused. Only an operator ends a pause.
-- KEYS: state. ARGV: reason, since, config.
-- Returns 1 if the sink was active, 2 if it was disabled with the same arguments, otherwise 0.
redis.call('HDEL', KEYS[1], '') -- see retry_queue.lua
local old = redis.call('HMGET', KEYS[1], 'state', 'reason', 'since')
if old[1] == 'paused' then
  return 0
end
if old[1] == 'disabled' and old[2] == ARGV[1] and old[3] == ARGV[2] then
  return 2
end
redis.call('HSET', KEYS[1], 'state', 'disabled', 'reason', ARGV[1], 'since', ARGV[2], 'config', ARGV[3])
if old[1] == 'disabled' then
  return 0
end
return 1

-- Disable a sink, unless it is paused: a pause ends by an operator's word only.
-- KEYS: state. ARGV: reason, since, config. Returns 1 where it was active, 2 where it was disabled by these very words.
local was = redis.call('HMGET', KEYS[1], 'state', 'reason', 'since')
if was[1] == 'paused' then
  return 0
end
if was[1] == 'disabled' and was[2] == ARGV[1] and was[3] == ARGV[2] then
  return 2
end
redis.call('HSET', KEYS[1], 'state', 'disabled', 'reason', ARGV[1], 'since', ARGV[2], 'config', ARGV[3])
if was[1] == 'disabled' then
  return 0
end
return 1

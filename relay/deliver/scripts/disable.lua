-- Disable a sink, unless it is paused: a pause ends by an operator's word only.
-- KEYS: state. ARGV: reason, since, config.
if redis.call('HGET', KEYS[1], 'state') == 'paused' then
  return 0
end
redis.call('HSET', KEYS[1], 'state', 'disabled', 'reason', ARGV[1], 'since', ARGV[2], 'config', ARGV[3])
return 1

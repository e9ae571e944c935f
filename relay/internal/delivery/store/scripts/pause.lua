-- Pause a sink. A paused sink stays unchanged. KEYS: state. ARGV: reason, since. Returns 1 if the sink was not paused.
local old = redis.call('HGET', KEYS[1], 'state')
if old == 'paused' then
  return 0
end
redis.call('DEL', KEYS[1])
if old == 'disabled' then
  redis.call('HSET', KEYS[1], 'disabled', '1')
end
redis.call('HSET', KEYS[1], 'state', 'paused', 'reason', ARGV[1], 'since', ARGV[2])
return 1

-- Pause a sink; one that is paused already stays as it is.
-- KEYS: state. ARGV: reason, since.
local was = redis.call('HGET', KEYS[1], 'state')
if was == 'paused' then
  return 0
end
redis.call('DEL', KEYS[1])
if was == 'disabled' then
  redis.call('HSET', KEYS[1], 'disabled', '1')
end
redis.call('HSET', KEYS[1], 'state', 'paused', 'reason', ARGV[1], 'since', ARGV[2])
return 1

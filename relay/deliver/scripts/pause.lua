-- Pause a sink; one that is paused already stays as it is.
-- KEYS: state. ARGV: reason, since.
if redis.call('HGET', KEYS[1], 'state') == 'paused' then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'state', 'paused', 'reason', ARGV[1], 'since', ARGV[2])
return 1

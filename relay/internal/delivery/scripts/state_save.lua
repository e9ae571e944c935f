-- Settle a name that was held. KEYS: memory. ARGV: mark, keep or release, value, milliseconds to keep it.
local state = redis.call('HMGET', KEYS[1], 'mark', 'value')
local ours = state[1] == ARGV[1]
if ARGV[2] == 'keep' and (ours or not state[2]) then
  if ARGV[3] == '' then
    if ours then redis.call('DEL', KEYS[1]) end
    return 1
  end
  redis.call('HSET', KEYS[1], 'value', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], math.max(tonumber(ARGV[4]), ours and 1 or redis.call('PTTL', KEYS[1])))
end
if ours then
  redis.call('HDEL', KEYS[1], 'mark', 'until')
end
return 1

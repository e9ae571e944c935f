-- Unlock a shared value. KEYS: shared. ARGV: mark, 'keep' or 'release', value, milliseconds until it expires.
redis.call('HDEL', KEYS[1], '') -- see retry_queue.lua
local state = redis.call('HMGET', KEYS[1], 'mark', 'value')
local is_locked = state[1] == ARGV[1]
if ARGV[2] == 'keep' and (is_locked or not state[2]) then
  if ARGV[3] == '' then
    if is_locked then redis.call('DEL', KEYS[1]) end
    return 1
  end
  redis.call('HSET', KEYS[1], 'value', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], math.max(tonumber(ARGV[4]), is_locked and 1 or redis.call('PTTL', KEYS[1])))
end
if is_locked then
  redis.call('HDEL', KEYS[1], 'mark', 'until')
end
return 1

-- Lock a shared value. KEYS: shared. ARGV: mark, milliseconds to hold the lock.
-- Returns {value}, or {} if it is locked.
redis.call('HDEL', KEYS[1], '') -- see retry_queue.lua
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local state = redis.call('HMGET', KEYS[1], 'value', 'until')
if (tonumber(state[2]) or 0) > now then
  return {}
end
local ttl = redis.call('PTTL', KEYS[1])
redis.call('HSET', KEYS[1], 'mark', ARGV[1], 'until', string.format('%.0f', now + ARGV[2]))
redis.call('PEXPIRE', KEYS[1], math.max(ttl, tonumber(ARGV[2])))
return {state[1] or ''}

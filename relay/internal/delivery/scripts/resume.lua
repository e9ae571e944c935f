-- Make a sink active. KEYS: state. Returns 1 where it was disabled, also where it was paused after that.
local was = redis.call('HMGET', KEYS[1], 'state', 'disabled')
redis.call('DEL', KEYS[1])
if was[1] == 'disabled' or was[2] then
  return 1
end
return 0

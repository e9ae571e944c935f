-- Make a sink active. KEYS: state. Returns 1 if it was disabled, also if it was paused after that.
local old = redis.call('HMGET', KEYS[1], 'state', 'disabled')
redis.call('DEL', KEYS[1])
if old[1] == 'disabled' or old[2] then
  return 1
end
return 0

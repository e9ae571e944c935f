-- Enable a sink that is still disabled with a configuration. KEYS: state. ARGV: config. Returns 1 if it was.
local old = redis.call('HMGET', KEYS[1], 'state', 'config')
if old[1] ~= 'disabled' or old[2] ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
return 1

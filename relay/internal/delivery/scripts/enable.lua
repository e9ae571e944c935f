-- Enable a sink that is still disabled under this configuration.
-- KEYS: state. ARGV: config.
local was = redis.call('HMGET', KEYS[1], 'state', 'config')
if was[1] ~= 'disabled' or was[2] ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
return 1

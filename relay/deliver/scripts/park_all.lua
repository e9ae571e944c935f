-- Park deliveries that are due at once; those that are parked already stay as they are.
-- KEYS: retry, parked. ARGV: id and body of each. Returns how many were not parked before.
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
local new = 0
for a = 1, #ARGV, 2 do
  new = new + redis.call('HSETNX', KEYS[2], ARGV[a], ARGV[a + 1])
  redis.call('ZADD', KEYS[1], 'NX', now, ARGV[a])
end
return new

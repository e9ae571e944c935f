-- Add to what is known of a sink over all nodes and restarts.
-- KEYS: figures. ARGV: 1 where something was delivered, then names of figures and what to add to each.
if ARGV[1] == '1' then
  local t = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'last_success', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)))
end
for a = 2, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[a], ARGV[a + 1])
end
return 1

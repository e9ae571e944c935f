-- Write the dead letter of a fresh delivery. A repeat after a crash takes the place of the former.
-- KEYS: deadletters, index. ARGV: id, then fields and values of the dead letter.
local old = redis.call('HGET', KEYS[2], ARGV[1])
if old then
  redis.call('XDEL', KEYS[1], old)
end
redis.call('HSET', KEYS[2], ARGV[1], redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2)))
return 1

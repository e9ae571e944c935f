-- Turn a claimed delivery into a dead letter, unless the claim was lost.
-- KEYS: retry, parked, deadletters, index. ARGV: id, end of the claim, then fields and values of the dead letter.
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then
  return 0
end
local old = redis.call('HGET', KEYS[4], ARGV[1])
if old then
  redis.call('XDEL', KEYS[3], old)
end
redis.call('HSET', KEYS[4], ARGV[1], redis.call('XADD', KEYS[3], '*', unpack(ARGV, 3)))
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return 1

-- Record when credentials changed. If there are too many records, they become one for all credentials.
-- KEYS: changes, a sorted set by time. ARGV: time before which records end, maximum number of records, milliseconds until the
-- key expires; then time and member of each change. Times are in unix milliseconds.
local changes = KEYS[1]
for i = 4, #ARGV, 2 do redis.call('ZADD', changes, 'GT', ARGV[i], ARGV[i + 1]) end
redis.call('ZREMRANGEBYSCORE', changes, '-inf', '(' .. ARGV[1])
if redis.call('ZCARD', changes) > tonumber(ARGV[2]) then
  local newest = redis.call('ZRANGE', changes, -1, -1, 'WITHSCORES')[2]
  redis.call('DEL', changes)
  redis.call('ZADD', changes, newest, '')
end
redis.call('PEXPIRE', changes, ARGV[3])
return 1

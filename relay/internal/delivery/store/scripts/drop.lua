-- Delete dead letters. KEYS: deadletters, index. ARGV: ID and entry ID of each. Returns the number of deleted ones.
local dropped = 0
for a = 1, #ARGV, 2 do
  dropped = dropped + redis.call('XDEL', KEYS[1], ARGV[a + 1])
  if redis.call('HGET', KEYS[2], ARGV[a]) == ARGV[a + 1] then
    redis.call('HDEL', KEYS[2], ARGV[a])
  end
end
return dropped

-- Seal the open digests of a sink after a time at the latest. A full Redis accepts the write after the deletion of a member that
-- does not exist. KEYS: digests. ARGV: milliseconds until then. Returns the number of digests that are sealed earlier than before.
redis.call('ZREM', KEYS[1], '')
local t = redis.call('TIME')
local latest = string.format('%.0f', t[1] * 1000 + math.ceil(t[2] / 1000) + tonumber(ARGV[1]))
local groups = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. latest, '+inf')
for _, group in ipairs(groups) do
  redis.call('ZADD', KEYS[1], latest, group)
end
return #groups

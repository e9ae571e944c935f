-- Start an import. It supersedes all earlier ones.
-- KEYS: imports, seed.
-- ARGV: digest of the content, 1 for a seed.
-- Returns the number of the import, or 0 if the last seed had the same content, and no later seed was interrupted.
if ARGV[2] == '1' and redis.call('GET', KEYS[2]) == ARGV[1] and redis.call('HEXISTS', KEYS[1], 'unfinished_seed') == 0 then
  return 0
end
-- The partitions keep the numbers of their last imports. Normally the time is later, even after Redis lost KEYS[1].
local t = redis.call('TIME')
local number = math.max(tonumber(redis.call('HGET', KEYS[1], 'begun') or 0) + 1, t[1] * 1000 + math.floor(t[2] / 1000))
redis.call('HSET', KEYS[1], 'begun', string.format('%.0f', number), 'digest', ARGV[1])
return number

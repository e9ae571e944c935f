-- Start an import. It supersedes all earlier ones.
-- KEYS: imports, seed.
-- ARGV: digest of the content, 1 for a seed.
-- Returns the number of the import, or 0 if the last seed had the same content.
if ARGV[2] == '1' and redis.call('GET', KEYS[2]) == ARGV[1] then
  return 0
end
local number = redis.call('HINCRBY', KEYS[1], 'begun', 1)
redis.call('HSET', KEYS[1], 'digest', ARGV[1])
return number

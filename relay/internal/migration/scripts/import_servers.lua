-- Add and change servers. This is the first step of an import with changes.
-- KEYS: imports, servers.
-- ARGV: number of the import, 1 for a seed, then ID and value of each server.
-- Returns 0 if the import is superseded.
if redis.call('HGET', KEYS[1], 'begun') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'unfinished', ARGV[1])
if ARGV[2] == '1' then redis.call('HSET', KEYS[1], 'unfinished_seed', ARGV[1]) end
for i = 3, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
return 1

-- Add and change servers, as the first step of an import that changes something.
-- KEYS: imports, servers. ARGV: the import's number, then id and value of each server. Returns 0 for an overtaken import.
if redis.call('HGET', KEYS[1], 'begun') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'unfinished', ARGV[1])
for i = 2, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
return 1

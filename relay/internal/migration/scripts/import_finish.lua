-- Finish an import: remove the servers that it does not contain. Increase the version if this import or an earlier
-- interrupted one has changed anything.
-- KEYS: imports, servers, version, seed.
-- ARGV: number of the import, digest to store as the seed or '', then the IDs of the remaining servers.
-- Returns 0 if the import is superseded.
if redis.call('HGET', KEYS[1], 'begun') ~= ARGV[1] then
  return 0
end
local stays = {}
for i = 3, #ARGV do stays[ARGV[i]] = true end
for _, id in ipairs(redis.call('HKEYS', KEYS[2])) do
  if not stays[id] then redis.call('HDEL', KEYS[2], id) end
end
redis.call('HDEL', KEYS[1], 'unfinished_seed')
if redis.call('HDEL', KEYS[1], 'unfinished') == 1 then
  redis.call('INCR', KEYS[3])
end
if ARGV[2] ~= '' then
  redis.call('SET', KEYS[4], ARGV[2])
end
return 1

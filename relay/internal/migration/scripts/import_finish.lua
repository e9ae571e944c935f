-- End an import: remove the servers that it does not name, and raise the version where it has changed something, or
-- one before it that was broken off.
-- KEYS: imports, servers, version, seed. ARGV: the import's number, the digest to store as the seed or '', then the id of
-- each server that stays. Returns 0 for an overtaken import.
if redis.call('HGET', KEYS[1], 'begun') ~= ARGV[1] then
  return 0
end
local stays = {}
for i = 3, #ARGV do stays[ARGV[i]] = true end
for _, id in ipairs(redis.call('HKEYS', KEYS[2])) do
  if not stays[id] then redis.call('HDEL', KEYS[2], id) end
end
if redis.call('HDEL', KEYS[1], 'unfinished') == 1 then
  redis.call('INCR', KEYS[3])
end
if ARGV[2] ~= '' then
  redis.call('SET', KEYS[4], ARGV[2])
end
return 1

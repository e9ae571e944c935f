-- Make a scheduled delivery of the open digest of a group if its time has come. It is due at once.
-- KEYS: retry, records, arrivals, digests, digest, digestcount, digestbytes, order, ordermembers. ARGV: group. Returns 1 if a digest
-- was sealed.
local at = now()
local due = redis.call('ZSCORE', KEYS[4], ARGV[1])
if not due or tonumber(due) > at then
  return 0
end
redis.call('ZREM', KEYS[4], ARGV[1])
local f, topics = {}, {}
local all = redis.call('HGETALL', KEYS[5])
for i = 1, #all, 2 do
  f[all[i]] = all[i + 1]
  local topic = string.match(all[i], '^topic:(.*)$')
  if topic then
    topics[#topics + 1] = cjson.encode(topic) .. ':' .. all[i + 1]
  end
end
redis.call('DEL', KEYS[5])
if redis.call('ZCARD', KEYS[4]) == 0 then
  redis.call('DEL', KEYS[6], KEYS[7])
else
  redis.call('DECRBY', KEYS[6], f.count or 0)
  redis.call('DECRBY', KEYS[7], f.size or 0)
end
if not f.id or not f['item:0'] then
  return 0
end
table.sort(topics)
local items = {}
for i = 1, tonumber(f.kept) do
  local item = f['item:' .. (i - 1)]
  items[i] = #item .. ':' .. item
end
local by = ''
if f.by ~= '{}' then
  by = ',"by":' .. f.by
end
local head = '{"made":0,"attempts":[],"digest":{"count":' .. f.count .. ',"first":' .. cjson.encode(f.first)
  .. ',"last":' .. cjson.encode(f.last) .. by .. ',"topics":{' .. table.concat(topics, ',') .. '}}}\n'
schedule(f.id, head .. table.concat(items), at, tonumber(f.first_ms))
return 1

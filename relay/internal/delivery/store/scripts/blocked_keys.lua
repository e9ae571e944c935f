-- List the ordering keys of scheduled deliveries. Repair the order if something else removed a part of it, so the first
-- delivery of each key can become due.
-- KEYS: retry, records, arrivals, order, ordermembers. ARGV: the key after which to start or '', maximum number of keys.
-- Returns the keys.
redis.call('ZREM', order, '') -- see retry_queue.lua

local from, keys = '-', {}
if ARGV[1] ~= '' then
  from = '(' .. ARGV[1] .. ':'
end
while #keys < tonumber(ARGV[2]) do
  local member = redis.call('ZRANGEBYLEX', order, from, '+', 'LIMIT', 0, 1)[1]
  if not member then
    break
  end
  local key, id = string.sub(member, 1, 24), string.sub(member, 41)
  local score = redis.call('ZSCORE', KEYS[1], id)
  local stored = redis.call('HGET', members, id)
  if not score or stored and stored ~= member then
    redis.call('ZREM', order, member)
    if stored == member then
      redis.call('HDEL', members, id)
    end
  else
    redis.call('HSETNX', members, id, member)
    make_due(id)
    keys[#keys + 1] = key
    from = '(' .. key .. ':'
  end
end
return keys

-- List the ordering keys that have a line, and mend lines whose first cannot come because somebody else removed or lost
-- a part of what is kept here.
-- KEYS: retry, parked, since, line, lined. ARGV: the key to begin behind or '', how many. Returns the keys.
local from, keys = '-', {}
if ARGV[1] ~= '' then
  from = '(' .. ARGV[1] .. ':'
end
while #keys < tonumber(ARGV[2]) do
  local member = redis.call('ZRANGEBYLEX', line, from, '+', 'LIMIT', 0, 1)[1]
  if not member then
    break
  end
  local key, id = string.sub(member, 1, 24), string.sub(member, 41)
  local score = redis.call('ZSCORE', KEYS[1], id)
  local known = redis.call('HGET', lined, id)
  if not score or known and known ~= member then
    redis.call('ZREM', line, member)
    if known == member then
      redis.call('HDEL', lined, id)
    end
  else
    redis.call('HSETNX', lined, id, member)
    if tonumber(score) >= never then
      redis.call('ZADD', KEYS[1], string.format('%.0f', now()), id)
    end
    keys[#keys + 1] = key
    from = '(' .. key .. ':'
  end
end
return keys

-- Describe a log without its entries, which may be large.
-- KEYS: log. Returns its length, the number of entries ever added or -1 before Redis 7, and the ID of the first entry or ''.
local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
if info.err then
  if string.find(info.err, 'no such key', 1, true) then
    return {0, 0, ''}
  end
  return info
end
local length, added = 0, -1
for i = 1, #info, 2 do
  if info[i] == 'length' then length = info[i + 1] end
  if info[i] == 'entries-added' then added = info[i + 1] end
end
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
return {length, added, first[1] and first[1][1] or ''}

-- Delete the entries of an account from a page of a stream. Queues have a consumer group, whose pending list must not
-- keep deleted entries.
-- KEYS: stream. ARGV: first ID, maximum number of entries to check, account, consumer group or ''.
-- Returns the number of deleted entries, and the ID after the page, or '' at the end.
local page = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
local deleted = 0
for _, entry in ipairs(page) do
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'account' and fields[i + 1] == ARGV[3] then
      if ARGV[4] ~= '' then
        redis.call('XACK', KEYS[1], ARGV[4], entry[1])
      end
      deleted = deleted + redis.call('XDEL', KEYS[1], entry[1])
      break
    end
  end
end
if #page < tonumber(ARGV[2]) then
  return {deleted, ''}
end
return {deleted, '(' .. page[#page][1]}

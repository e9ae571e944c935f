-- erase_page deletes the entries of a page of a stream that have a field for which belongs(name, value) is true.
-- KEYS: stream. ARGV: first ID, maximum number of entries to check, account, consumer group or '', last ID. The pending list of a
-- group must not keep deleted entries.
-- It returns the number of deleted entries, and the ID after the page, or '' at the end.
local function erase_page(belongs)
  local page = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[5], 'COUNT', ARGV[2])
  local deleted = 0
  for _, entry in ipairs(page) do
    local fields = entry[2]
    for i = 1, #fields, 2 do
      if belongs(fields[i], fields[i + 1]) then
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
end

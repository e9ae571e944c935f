-- Count the entries of each account in a page of a queue.
-- KEYS: queue. ARGV: first ID, maximum number of entries.
-- Returns the ID after the page, or '' at the end; then each account and its number of entries.
local page = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
local counts = {}
for _, entry in ipairs(page) do
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'account' then
      counts[fields[i + 1]] = (counts[fields[i + 1]] or 0) + 1
      break
    end
  end
end
local result = {''}
if #page == tonumber(ARGV[2]) then
  result[1] = '(' .. page[#page][1]
end
for account, n in pairs(counts) do
  result[#result + 1] = account
  result[#result + 1] = n
end
return result

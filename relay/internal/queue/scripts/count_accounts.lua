-- Count the entries of each account in a part of a queue.
-- KEYS: queue. ARGV: first ID, maximum number of entries, number of bytes after which the part ends.
-- Returns the ID after the part, or '' at the end; then each account and its number of entries.
local counts = {}
local last = scan('XRANGE', KEYS[1], ARGV[1], '+', tonumber(ARGV[2]), tonumber(ARGV[3]), function(entry)
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'account' then
      counts[fields[i + 1]] = (counts[fields[i + 1]] or 0) + 1
      break
    end
  end
end)
local result = {last and '(' .. last or ''}
for account, n in pairs(counts) do
  result[#result + 1] = account
  result[#result + 1] = n
end
return result

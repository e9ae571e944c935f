-- Count the oldest entries of a stream that need a number of bytes together. It overestimates their sizes, and counts
-- fewer than needed. It reads few entries at a time, because large ones may follow small ones.
-- KEYS: stream. ARGV: first ID, number of bytes, maximum number of entries.
-- Returns the number of entries, their bytes, and the first ID after them, or '' at the end.
local first, bytes, max = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local count, size = 0, 0
while size < bytes and count < max do
  local page = redis.call('XRANGE', KEYS[1], first, '+', 'COUNT', 8)
  for _, entry in ipairs(page) do
    if size >= bytes then break end
    size = size + 40
    for _, value in ipairs(entry[2]) do size = size + #value * 1.25 end
    count, first = count + 1, '(' .. entry[1]
  end
  if #page < 8 then
    if size < bytes then first = '' end
    break
  end
end
return {count, math.floor(size), first}

-- Count the oldest entries of a stream that need a number of bytes together. It overestimates their sizes, and counts fewer than
-- needed.
-- KEYS: stream. ARGV: first ID, number of bytes, maximum number of entries.
-- Returns the number of entries, their bytes, and the first ID after them, or '' at the end.
local bytes, count, size, last = tonumber(ARGV[2]), 0, 0, nil
local more = scan('XRANGE', KEYS[1], ARGV[1], '+', tonumber(ARGV[3]), bytes, function(entry)
  if size >= bytes then return end
  size = size + 40
  for _, value in ipairs(entry[2]) do size = size + #value * 1.25 end
  count, last = count + 1, entry[1]
end)
return {count, math.floor(size), more and '(' .. last or ''}

-- Calls visit for each entry of a stream. It ends after max entries or budget bytes, because it blocks Redis. It reads few entries
-- at a time, because large ones may follow small ones. command is XRANGE or XREVRANGE.
-- Returns the ID of the last entry, or nil at the end of the range.
local function scan(command, stream, first, last, max, budget, visit)
  local id
  while max > 0 and budget > 0 do
    local count, size = math.min(8, max), 0
    local page = redis.call(command, stream, first, last, 'COUNT', count)
    for _, entry in ipairs(page) do
      size = size + 100 -- the work for a small entry
      for _, value in ipairs(entry[2]) do size = size + #value end
      id = entry[1]
      visit(entry)
    end
    if #page < count then return nil end
    first, max, budget = '(' .. id, max - count, budget - size
  end
  return id
end

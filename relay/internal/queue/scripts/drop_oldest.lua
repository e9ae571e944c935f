-- Remove the oldest entries of a queue that no consumer has read, until a maximum is left. Entries that were read are being
-- delivered. A stream can be trimmed only at its beginning, so entries after them are removed one by one.
-- KEYS: queue, dispatch position. ARGV: maximum number of unread entries; number of bytes after whose removal the script ends,
-- because it blocks Redis.
-- Returns the number of removed entries, and 1 if there are still too many, otherwise 0.
local queue, dispatched = KEYS[1], KEYS[2]
local max, budget = tonumber(ARGV[1]), tonumber(ARGV[2])
local read, pending = read_state(queue)
local excess = redis.call('XLEN', queue) - pending - max
if excess <= 0 then return {0, 0} end

local dropped, count, isEnd = 0, 1, false
if pending == 0 then
  dropped, isEnd = redis.call('XTRIM', queue, 'MAXLEN', max), true
end
while dropped < excess and budget > 0 and not isEnd do
  local entries = redis.call('XRANGE', queue, '(' .. read, '+', 'COUNT', math.min(count, excess - dropped))
  if #entries == 0 then
    isEnd = true
  else
    local size = 0
    for i, entry in ipairs(entries) do
      for _, value in ipairs(entry[2]) do size = size + #value end
      entries[i], size = entry[1], size + 100 -- the work for a small entry
    end
    redis.call('XDEL', queue, unpack(entries))
    dropped, budget = dropped + #entries, budget - size
    -- The next entries may be larger, so the number of entries that are read at once grows slowly.
    count = math.max(1, math.min(2 * count, math.floor(budget * #entries / size), 500))
  end
end

local first = redis.call('XRANGE', queue, '(' .. read, '+', 'COUNT', 1)[1]
if first then redis.call('HSET', dispatched, 'dropped:' .. queue, first[1]) end
return {dropped, dropped < excess and not isEnd and 1 or 0}

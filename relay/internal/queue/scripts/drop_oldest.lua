-- Remove the oldest entries of a queue that no consumer has read, until a maximum is left. Entries that were read are being
-- delivered. A stream can be trimmed only at its beginning, so entries after them are removed one by one.
-- KEYS: queue, dispatch position. ARGV: maximum number of unread entries; number of bytes after whose removal the script ends.
-- Returns the number of removed entries, and 1 if there are still too many, otherwise 0.
local queue, dispatched = KEYS[1], KEYS[2]
local max = tonumber(ARGV[1])
local read, pending = read_state(queue)
local excess = redis.call('XLEN', queue) - pending - max
if excess <= 0 then return {0, 0} end

local dropped, last = 0, nil
if pending == 0 then
  dropped = redis.call('XTRIM', queue, 'MAXLEN', max)
else
  last = scan('XRANGE', queue, '(' .. read, '+', excess, tonumber(ARGV[2]), function(entry)
    dropped = dropped + redis.call('XDEL', queue, entry[1])
  end)
end
local first = redis.call('XRANGE', queue, '(' .. read, '+', 'COUNT', 1)[1]
if first then redis.call('HSET', dispatched, 'dropped:' .. queue, first[1]) end
return {dropped, last and dropped < excess and 1 or 0}

-- Remove the oldest entries of a queue until a maximum is left. A consumer still delivers a removed entry that it has read.
-- KEYS: queue, dispatch position. ARGV: maximum number of entries.
-- Returns the number of removed entries, and how many of them no consumer had read.
local queue, field = KEYS[1], 'dropped:' .. KEYS[1]
local removed = redis.call('XTRIM', queue, 'MAXLEN', ARGV[1])
local first = redis.call('XRANGE', queue, '-', '+', 'COUNT', 1)[1]
if removed == 0 or not first then return {removed, removed} end

-- Entries before those were removed earlier.
local from = redis.call('HGET', KEYS[2], field) or '-'
redis.call('HSET', KEYS[2], field, first[1])
local delivering = 0
for _, group in ipairs(redis.pcall('XINFO', 'GROUPS', queue)) do
  for i = 1, #group, 2 do
    if group[i] == 'name' then
      for _, entry in ipairs(redis.call('XPENDING', queue, group[i + 1], from, first[1], removed + 1)) do
        if entry[1] ~= first[1] then delivering = delivering + 1 end
      end
    end
  end
end
return {removed, removed - delivering}

-- Returns for each ID 1 if the queue has the entry, otherwise 0. KEYS: queue. ARGV: IDs.
local result = {}
for i, id in ipairs(ARGV) do
  result[i] = #redis.call('XRANGE', KEYS[1], id, id)
end
return result

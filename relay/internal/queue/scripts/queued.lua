-- Which entries does a queue still hold? KEYS: queue. ARGV: ids. Returns 1 or 0 for each.
local result = {}
for i, id in ipairs(ARGV) do
  result[i] = #redis.call('XRANGE', KEYS[1], id, id)
end
return result

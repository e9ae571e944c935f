-- Schedule deliveries that are due at once. Those that are already scheduled stay unchanged.
-- KEYS: retry, records, arrivals, order, ordermembers. ARGV: maximum number of scheduled deliveries (0: no limit), then ID, record
-- and ordering key ('': none) of each.
-- Returns the number of added and of processed deliveries. The queue is full if fewer were processed than given.
local at = now()
local max = tonumber(ARGV[1])
local added = 0
for a = 2, #ARGV, 3 do
  if is_full(max) and not redis.call('ZSCORE', KEYS[1], ARGV[a]) then
    return {added, (a - 2) / 3}
  end
  added = added + schedule(ARGV[a], ARGV[a + 1], at, at, ARGV[a + 2])
end
return {added, (#ARGV - 1) / 3}

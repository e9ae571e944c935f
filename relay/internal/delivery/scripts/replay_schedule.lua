-- Park deliveries that are due at once; those that are parked already stay as they are.
-- KEYS: retry, parked, since, line, lined. ARGV: most to be parked in all (0: no bound), then id, body and ordering key
-- or '' of each.
-- Returns how many were not parked before, and how many it came to: fewer than there are where there was no more room.
local at = now()
local most = tonumber(ARGV[1])
local new = 0
for a = 2, #ARGV, 3 do
  if full(most) and not redis.call('ZSCORE', KEYS[1], ARGV[a]) then
    return {new, (a - 2) / 3}
  end
  new = new + enter(ARGV[a], ARGV[a + 1], at, at, ARGV[a + 2])
end
return {new, (#ARGV - 1) / 3}

-- Replace a claimed delivery by parts of it that are due at once, unless the claim was lost. Returns 1 if it was valid.
-- KEYS: retry, records, arrivals, order, ordermembers. ARGV: ID, end of the claim, then ID and record of each part.
if not holds_claim(ARGV[1], ARGV[2]) then
  return 0
end
local since = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[1]) or now())
remove(ARGV[1])
for a = 3, #ARGV, 2 do
  schedule(ARGV[a], ARGV[a + 1], now(), since, '')
end
return 1

-- Park deliveries that are due at once; those that are parked already stay as they are.
-- KEYS: retry, parked, since. ARGV: id and body of each. Returns how many were not parked before.
local at = now()
local new = 0
for a = 1, #ARGV, 2 do
  new = new + enter(ARGV[a], ARGV[a + 1], at, at)
end
return new

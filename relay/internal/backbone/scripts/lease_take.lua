-- Take or keep a lease. Returns 1 when it is ours.
-- KEYS: lease. ARGV: value, milliseconds, and what the values of this process begin with, or '' unless nobody else may
-- hold one, then 1 to take it or 0 to keep it only if it is ours still.
local holder = redis.call('GET', KEYS[1])
if not holder and ARGV[4] == '0' then return 0 end
if holder and holder ~= ARGV[1] then
  if ARGV[3] == '' or string.sub(holder, 1, #ARGV[3]) == ARGV[3] then return 0 end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1

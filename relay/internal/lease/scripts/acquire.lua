-- Acquire or renew a lease. Returns 1 if the caller holds it.
-- KEYS: lease. ARGV: value of the caller; ttl in milliseconds; prefix of all values of this process, or '' if other
-- processes may hold leases; 1 to take a free lease, 0 only to renew it.
local holder = redis.call('GET', KEYS[1])
if not holder and ARGV[4] == '0' then return 0 end
if holder and holder ~= ARGV[1] and (ARGV[3] == '' or string.sub(holder, 1, #ARGV[3]) == ARGV[3]) then
  -- All holders use the same ttl. A longer one means that the clock of Redis was set back. If the holder lives, it renews the lease.
  if ARGV[4] == '1' and redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return 0
end
-- A full Redis rejects the first write of a script unless it can only free memory, and no write after it. DEL is that first
-- write, so SET is not rejected. Without leases nothing would free memory.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1

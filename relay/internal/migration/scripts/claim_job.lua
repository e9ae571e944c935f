-- Take a job up with a lease that is higher than all before, of other jobs of the instance too. The clock is part of it,
-- so that it stays higher than what a driver remembers even where this Redis has forgotten.
-- KEYS: job, leases, jobs. ARGV: worker, the job's entry.
-- Returns the lease, the time and the job's fields; nothing for a job that is over or gone, or whose entry another worker has.
local state = redis.call('HGET', KEYS[1], 'state')
if not state or state == 'completed' or state == 'error' or state == 'expired' then
  redis.call('XACK', KEYS[3], 'workers', ARGV[2])
  redis.call('XDEL', KEYS[3], ARGV[2])
  return {}
end
if not redis.call('XPENDING', KEYS[3], 'workers', ARGV[2], ARGV[2], 1, ARGV[1])[1] then
  return {}
end
local field = redis.call('HGET', KEYS[1], 'field')
local before = tonumber(redis.call('HGET', KEYS[2], field) or '0')
local lease = string.format('%.0f', math.max(before + 1, tonumber(now())))
redis.call('HSET', KEYS[2], field, lease)
redis.call('HSET', KEYS[1], 'lease', lease, 'worker', ARGV[1])
return {lease, now(), redis.call('HGETALL', KEYS[1])}

-- Claim a job with a new lease. The lease is higher than all earlier leases of the instance, including those of other
-- jobs. It is at least the current time in milliseconds, so it exceeds all leases that a driver has stored, even after
-- Redis has lost its data.
-- KEYS: job, leases, jobs.
-- ARGV: worker, entry of the job.
-- Returns the lease, the time and the fields of the job. Returns an empty list if the job has ended or is missing, or
-- if another worker has the entry.
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

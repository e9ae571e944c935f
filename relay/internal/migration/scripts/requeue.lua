-- Put a job that is the caller's behind all that are queued. Its lease stays until somebody takes it up.
-- KEYS: job, jobs. ARGV: lease, the job's id.
-- Returns 1; 0 where the lease is no longer the caller's, -1 where there is no such job.
local lease = redis.call('HGET', KEYS[1], 'lease')
if lease ~= ARGV[1] then
  return lease and 0 or -1
end
local before = redis.call('HGET', KEYS[1], 'entry')
redis.call('HSET', KEYS[1], 'entry', redis.call('XADD', KEYS[2], '*', 'job', ARGV[2]))
redis.call('XACK', KEYS[2], 'workers', before)
redis.call('XDEL', KEYS[2], before)
return 1

-- Move a job of the caller to the end of the queue. The lease remains until another worker claims the job.
-- KEYS: job, jobs.
-- ARGV: lease, job ID.
-- Returns 1; 0 if the lease is superseded, -1 if the job is missing.
local lease = redis.call('HGET', KEYS[1], 'lease')
if lease ~= ARGV[1] then
  return lease and 0 or -1
end
local before = redis.call('HGET', KEYS[1], 'entry')
redis.call('HSET', KEYS[1], 'entry', redis.call('XADD', KEYS[2], '*', 'job', ARGV[2]))
redis.call('XACK', KEYS[2], 'workers', before)
redis.call('XDEL', KEYS[2], before)
return 1

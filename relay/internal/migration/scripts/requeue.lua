-- Move a job of the caller to the end of the queue. The lease remains until another worker claims the job.
-- KEYS: job, jobs.
-- ARGV: lease, job ID.
-- Returns 1; or the reply of check_lease.
local reply = check_lease(KEYS[1], ARGV[1])
if reply then
  return reply
end
local before = redis.call('HGET', KEYS[1], 'entry')
redis.call('HSET', KEYS[1], 'entry', redis.call('XADD', KEYS[2], '*', 'job', ARGV[2]))
redis.call('XACK', KEYS[2], 'workers', before)
redis.call('XDEL', KEYS[2], before)
return 1

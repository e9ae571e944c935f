-- Mark a job as active, or make it look abandoned.
-- KEYS: job, jobs.
-- ARGV: lease, worker, idle time in milliseconds.
-- Returns 1, or 2 if the job was canceled; or the reply of no_lease.
if redis.call('HGET', KEYS[1], 'lease') ~= ARGV[1] then
  return no_lease(KEYS[1])
end
redis.call('XCLAIM', KEYS[2], 'workers', ARGV[2], 0, redis.call('HGET', KEYS[1], 'entry'), 'IDLE', ARGV[3], 'JUSTID')
return redis.call('HEXISTS', KEYS[1], 'canceled') == 1 and 2 or 1

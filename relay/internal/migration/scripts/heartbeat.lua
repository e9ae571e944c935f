-- Mark a job as active, or make it look abandoned.
-- KEYS: job, jobs.
-- ARGV: lease, worker, idle time in milliseconds.
-- Returns 1, or 2 if the job was canceled; 0 if the lease is superseded, -1 if the job is missing.
local lease = redis.call('HGET', KEYS[1], 'lease')
if lease ~= ARGV[1] then
  return lease and 0 or -1
end
redis.call('XCLAIM', KEYS[2], 'workers', ARGV[2], 0, redis.call('HGET', KEYS[1], 'entry'), 'IDLE', ARGV[3], 'JUSTID')
return redis.call('HEXISTS', KEYS[1], 'canceled') == 1 and 2 or 1

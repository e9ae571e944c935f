-- Show that a job is being worked on, or give it away to whoever looks next.
-- KEYS: job, jobs. ARGV: lease, worker, milliseconds for which it shall seem to have been left alone.
-- Returns 1; 0 where the lease is no longer the caller's, -1 where there is no such job.
local lease = redis.call('HGET', KEYS[1], 'lease')
if lease ~= ARGV[1] then
  return lease and 0 or -1
end
redis.call('XCLAIM', KEYS[2], 'workers', ARGV[2], 0, redis.call('HGET', KEYS[1], 'entry'), 'IDLE', ARGV[3], 'JUSTID')
return 1

-- Show that a job is being worked on, or give it away to whoever looks next.
-- KEYS: job, jobs. ARGV: lease, worker, milliseconds for which it shall seem to have been left alone.
-- Returns 1; 0 where the lease is no longer the caller's.
if redis.call('HGET', KEYS[1], 'lease') ~= ARGV[1] then
  return 0
end
redis.call('XCLAIM', KEYS[2], 'workers', ARGV[2], 0, redis.call('HGET', KEYS[1], 'entry'), 'IDLE', ARGV[3], 'JUSTID')
return 1

-- Mark a job as active, or make it look abandoned. Restore the state of a running job, which a failover can lose.
-- KEYS: job, jobs.
-- ARGV: lease, worker, idle time in milliseconds, steps of a running job ('' if it waits).
-- Returns 1, or 2 if the job was canceled; or the reply of check_lease.
local reply = check_lease(KEYS[1], ARGV[1])
if reply then
  return reply
end
local state = redis.call('HGET', KEYS[1], 'state')
if ARGV[4] ~= '' and (state == 'queued' or state == 'scheduled') then
  local at = now()
  redis.call('HSET', KEYS[1], 'state', 'running', 'steps', ARGV[4], 'started', at, 'changed', at)
end
redis.call('XCLAIM', KEYS[2], 'workers', ARGV[2], 0, redis.call('HGET', KEYS[1], 'entry'), 'IDLE', ARGV[3], 'JUSTID')
return redis.call('HEXISTS', KEYS[1], 'canceled') == 1 and 2 or 1

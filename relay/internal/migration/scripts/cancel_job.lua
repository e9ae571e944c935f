-- Cancel a job. A job that waits ends at once. The worker of a running job reads it with its next heartbeat.
-- KEYS: job, log, jobs, migrating.
-- ARGV: state and error of a canceled job, milliseconds to store an ended job, then id, topic, hub, account and data of
-- each event.
-- Returns the state of the job before, or '' if the job is missing, and the milliseconds since its request.
local job = KEYS[1]
local state = redis.call('HGET', job, 'state')
local at = now()
if state == 'running' then
  redis.call('HSET', job, 'canceled', '1')
elseif state == 'queued' or state == 'scheduled' then
  redis.call('HSET', job, 'canceled', '1', 'state', ARGV[1], 'error', ARGV[2], 'changed', at, 'completed', at)
  -- A worker that waits for the servers of the job has no lease from now on.
  redis.call('HINCRBY', job, 'lease', 1)
  append_events(KEYS[2], 4)
  redis.call('HDEL', KEYS[4], redis.call('HGET', job, 'field'))
  local entry = redis.call('HGET', job, 'entry')
  redis.call('XACK', KEYS[3], 'workers', entry)
  redis.call('XDEL', KEYS[3], entry)
  redis.call('PEXPIRE', job, ARGV[3])
end
return {state or '', at - (tonumber(redis.call('HGET', job, 'queued')) or at)}

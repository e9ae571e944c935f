-- Change a job that is still the caller's, together with the events of the change.
-- KEYS: job, log, jobs, migrating, moved, instances.
-- ARGV: lease, mark of this change, milliseconds to keep a job that is over ('' where it goes on), where the instance has
-- moved ('' where it has not), how many fields and values, these, then id, topic, hub, account, data of each event.
-- Returns 1; 0 where the lease is no longer the caller's, -1 where there is no such job. A change that was made already is not made again.
local job = KEYS[1]
local lease = redis.call('HGET', job, 'lease')
if lease ~= ARGV[1] then
  return lease and 0 or -1
end
if redis.call('HGET', job, 'mark') == ARGV[2] then
  return 1
end
local at = now()
redis.call('HSET', job, 'mark', ARGV[2])
local events = 6 + tonumber(ARGV[5])
for i = 6, events - 1, 2 do
  local value = ARGV[i + 1]
  if value == '@now' then
    value = at
  end
  redis.call('HSET', job, ARGV[i], value)
end
tell(KEYS[2], events)
if ARGV[3] ~= '' then
  local field = redis.call('HGET', job, 'field')
  redis.call('HDEL', KEYS[4], field)
  if ARGV[4] ~= '' then
    if redis.call('HGET', KEYS[6], field) == ARGV[4] then
      redis.call('HDEL', KEYS[5], field)
    else
      redis.call('HSET', KEYS[5], field, ARGV[4])
    end
  end
  local entry = redis.call('HGET', job, 'entry')
  redis.call('XACK', KEYS[3], 'workers', entry)
  redis.call('XDEL', KEYS[3], entry)
  redis.call('PEXPIRE', job, ARGV[3])
end
return 1

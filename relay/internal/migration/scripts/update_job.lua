-- Update a job of the caller and append the events of the change. An update with the same mark is applied once.
-- KEYS: job, log, jobs, migrating, moved, instances.
-- ARGV: lease, mark, milliseconds to store an ended job ('' if it continues), the new server of the instance ('' if it
-- has not moved), number of fields and values, the fields and values, then id, topic, hub, account and data of each
-- event.
-- Returns 1, or the reply of check_lease.
local job = KEYS[1]
local reply = check_lease(job, ARGV[1])
if reply then
  return reply
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
append_events(KEYS[2], events)
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

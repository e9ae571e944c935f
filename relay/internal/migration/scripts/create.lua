-- Store a new job with its events, unless the instance is being moved or has moved since the lookup.
-- KEYS: job, log, jobs, jobs of the instance, migrating, moved, instances, recent jobs, optional: result of the idempotency
-- key.
-- ARGV: field of the instance, its server at the lookup, job ID, spec of the job, digest of the request, milliseconds
-- to store the idempotency key, milliseconds to store the jobs of the instance and the recent jobs, the maximum numbers of
-- both, then id, topic, hub, account and data of each event.
-- Returns the outcome, and the ID of the new, earlier or running job.
local known = KEYS[9] and known_job(KEYS[9])
if known then
  local cut = string.find(known, '\n', 1, true)
  if string.sub(known, 1, cut - 1) ~= ARGV[5] then
    return {'reused', ''}
  end
  return {'created', string.sub(known, cut + 1)}
end
local other = redis.call('HGET', KEYS[5], ARGV[1])
if other then
  return {'migrating', other}
end
local placed = redis.call('HGET', KEYS[7], ARGV[1])
if not placed then
  return {'gone', ''}
end
if (redis.call('HGET', KEYS[6], ARGV[1]) or placed) ~= ARGV[2] then
  return {'elsewhere', ''}
end
local entry = redis.call('XADD', KEYS[3], '*', 'job', ARGV[3])
redis.call('HSET', KEYS[1], 'order', ARGV[4], 'field', ARGV[1], 'entry', entry,
  'state', 'queued', 'queued', now(), 'changed', now())
redis.call('HSET', KEYS[5], ARGV[1], ARGV[3])
redis.call('LPUSH', KEYS[4], ARGV[3])
-- The jobs that leave the list have ended. Otherwise a client could fill Redis with jobs.
for _, old in ipairs(redis.call('LRANGE', KEYS[4], ARGV[8], -1)) do
  local at, last = string.find(KEYS[1], ARGV[3], 1, true)
  redis.call('DEL', string.sub(KEYS[1], 1, at - 1) .. old .. string.sub(KEYS[1], last + 1))
end
redis.call('LTRIM', KEYS[4], 0, tonumber(ARGV[8]) - 1)
redis.call('PEXPIRE', KEYS[4], ARGV[7])
redis.call('LPUSH', KEYS[8], ARGV[3])
redis.call('LTRIM', KEYS[8], 0, tonumber(ARGV[9]) - 1)
redis.call('PEXPIRE', KEYS[8], ARGV[7])
append_events(KEYS[2], 10)
if KEYS[9] then
  redis.call('SET', KEYS[9], ARGV[5] .. '\n' .. ARGV[3], 'PX', ARGV[6])
end
return {'created', ARGV[3]}

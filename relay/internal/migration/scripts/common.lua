-- Prefix of the job scripts. If its memory is full, Redis rejects the first write of a script but no later one. So each
-- script is applied completely or not at all.

local function now()
  local t = redis.call('TIME')
  return string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
end

-- check_lease returns nil if a worker has the lease of a job, and otherwise the reply to the worker: 0 if another worker has the
-- lease, -1 if the job is missing, -2 if it has ended, -3 if it has ended without a stored start. Leases only grow. So if the
-- stored lease is lower, a failover has lost the claim of this worker, no other worker has claimed the job since then, and
-- check_lease stores the lease again.
local function check_lease(job, lease)
  local state = redis.call('HGET', job, 'state')
  local stored = redis.call('HGET', job, 'lease')
  if not state then
    return -1
  elseif stored == lease then
    return nil
  elseif state == 'completed' or state == 'error' or state == 'expired' then
    return redis.call('HEXISTS', job, 'started') == 1 and -2 or -3
  elseif stored and tonumber(stored) > tonumber(lease) then
    return 0
  end
  redis.call('HSET', job, 'lease', lease)
  return nil
end

-- known_job returns the result of an idempotency key, or false. It sets the remaining time of the key again, because
-- replicas confirm only a write.
local function known_job(key)
  local known = redis.call('GET', key)
  if known then
    redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), 1))
  end
  return known
end

-- append_events appends the events in ARGV, from index first, to the log.
local function append_events(log, first)
  for i = first, #ARGV, 5 do
    redis.call('XADD', log, '*', 'id', ARGV[i], 'topic', ARGV[i + 1], 'hub', ARGV[i + 2],
      'account', ARGV[i + 3], 'data', ARGV[i + 4], 'publisher', 'relay')
  end
end

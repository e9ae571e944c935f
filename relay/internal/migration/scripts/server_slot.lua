-- Request the slots of a job on its two servers, or renew them. The accounts take turns: a slot is for the account that has waited
-- longest since its last job started, and then for the job that was queued first.
-- KEYS: slots, a hash of "source destination since expires running account" by job, separated by line feeds; the times of the
-- last starts by account.
-- ARGV: job, source, destination, maximum per server, milliseconds until the entry of a waiting job expires, queue time of the job,
-- account, 1 if the job runs.
-- Returns 1 if the job may run.
local at = tonumber(now())
local function parse(text)
  local parts = {}
  for part in string.gmatch(text, '[^\n]+') do
    parts[#parts + 1] = part
  end
  return {source = parts[1], destination = parts[2], since = tonumber(parts[3]), expires = tonumber(parts[4]),
    running = parts[5] == '1', account = parts[6] or ''}
end
local mine = {source = ARGV[2], destination = ARGV[3], since = tonumber(ARGV[6]), running = ARGV[8] == '1', account = ARGV[7]}
local others = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local slot = parse(all[i + 1])
  if all[i] == ARGV[1] then
    mine.running = mine.running or slot.running
  elseif slot.expires < at then
    redis.call('HDEL', KEYS[1], all[i])
  else
    slot.job = all[i]
    others[#others + 1] = slot
  end
end
local starts = {}
local function last_start(account)
  if not starts[account] then
    starts[account] = tonumber(redis.call('ZSCORE', KEYS[2], account) or 0)
  end
  return starts[account]
end
local function is_before(slot)
  local theirs, ours = last_start(slot.account), last_start(mine.account)
  if slot.running or theirs ~= ours then
    return slot.running or theirs < ours
  end
  return slot.since < mine.since or (slot.since == mine.since and slot.job < ARGV[1])
end
local function free(server)
  local taken = 0
  for _, slot in ipairs(others) do
    if is_before(slot) and (slot.source == server or slot.destination == server) then
      taken = taken + 1
    end
  end
  return taken < tonumber(ARGV[4])
end
if not mine.running and free(mine.source) and free(mine.destination) then
  mine.running = true
  local remembered = 3600000 -- milliseconds
  redis.call('ZADD', KEYS[2], at, mine.account)
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', at - remembered)
  redis.call('PEXPIRE', KEYS[2], remembered)
end
-- In a cluster, a failover of these keys does not stop the driver, so the slots of a running job must survive it.
local ttl = tonumber(ARGV[5]) * (mine.running and 12 or 1)
redis.call('HSET', KEYS[1], ARGV[1], table.concat({mine.source, mine.destination, string.format('%.0f', mine.since),
  string.format('%.0f', at + ttl), mine.running and '1' or '0', mine.account}, '\n'))
return mine.running and 1 or 0

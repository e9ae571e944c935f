-- Request the slots of a job on its two servers, or renew them. Each server gives its slots to the accounts with the fewest
-- running jobs, and then to the jobs that were queued first. So an account with many jobs does not delay others for long.
-- KEYS: slots, a hash of "source destination since expires running account" by job, separated by line feeds.
-- ARGV: job, source, destination, maximum per server, milliseconds until the entry expires, queue time of the job, account.
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
local mine = {source = ARGV[2], destination = ARGV[3], since = tonumber(ARGV[6]), running = false, account = ARGV[7]}
local others = {}
local active = {} -- running jobs by account
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local slot = parse(all[i + 1])
  if all[i] == ARGV[1] then
    mine.running = slot.running
  elseif slot.expires < at then
    redis.call('HDEL', KEYS[1], all[i])
  else
    slot.job = all[i]
    others[#others + 1] = slot
    if slot.running then
      active[slot.account] = (active[slot.account] or 0) + 1
    end
  end
end
local function is_before(slot)
  local theirs, ours = active[slot.account] or 0, active[mine.account] or 0
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
if not mine.running then
  mine.running = free(mine.source) and free(mine.destination)
end
redis.call('HSET', KEYS[1], ARGV[1], table.concat({mine.source, mine.destination, string.format('%.0f', mine.since),
  string.format('%.0f', at + tonumber(ARGV[5])), mine.running and '1' or '0', mine.account}, '\n'))
return mine.running and 1 or 0

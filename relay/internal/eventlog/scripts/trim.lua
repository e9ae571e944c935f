-- Trim the entries of a log that its dispatcher has processed. Returns the number of removed entries, and the lag of
-- the dispatcher or -1 if it is unknown.
-- KEYS: log, dispatch position. ARGV: milliseconds of history to keep, or 0 for no limit; number of entries to keep,
-- or 0 for no limit; ID after which all entries stay, or ''; generation of the dispatcher, without which nothing is removed,
-- or 0.
local log, dispatched = KEYS[1], KEYS[2]
local history, maxlen = tonumber(ARGV[1]), tonumber(ARGV[2])
if redis.call('EXISTS', log) == 0 then return {0, 0} end

local position = redis.call('HGET', dispatched, 'position') or '0-0'
local total -- number of entries ever added, nil before Redis 7
local info = redis.call('XINFO', 'STREAM', log)
for i = 1, #info, 2 do
  if info[i] == 'entries-added' then total = info[i + 1] end
end

-- The lag follows from two counters. Without them, count up to a thousand entries after the position.
local lag, added = -1, nil
local counted = redis.call('HGET', dispatched, 'added')
if total and counted then
  lag = total - tonumber(counted)
end
if lag < 0 then
  local ahead = #redis.call('XRANGE', log, '(' .. position, '+', 'COUNT', 1000)
  if ahead < 1000 then
    lag = ahead
    if total then added = total - ahead end
  end
end

-- No entry after this position is removed.
local before = position
if ARGV[3] ~= '' and less(ARGV[3], before) then before = ARGV[3] end

if ARGV[4] ~= '0' and redis.call('HGET', dispatched, 'generation') ~= ARGV[4] then
  history, maxlen = 0, 0
end
local removed = 0
if history > 0 then
  local now = redis.call('TIME')
  local oldest = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) - history
  if oldest > 0 then
    local minid = string.format('%.0f-0', oldest)
    if less(before, minid) then minid = before end
    removed = redis.call('XTRIM', log, 'MINID', '~', minid)
  end
end
local excess = maxlen > 0 and math.min(redis.call('XLEN', log) - maxlen, 10000) or 0
if excess > 0 then
  removed = removed + redis.call('XTRIM', log, 'MINID', '~', before, 'LIMIT', string.format('%.0f', excess))
end
-- A full Redis rejects the first write of a script unless it can only free memory, so this one comes last.
if added then redis.pcall('HSET', dispatched, 'added', added) end
return {removed, lag}

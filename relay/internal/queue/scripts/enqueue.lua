-- Copy matched log entries to the queues of sinks under their own IDs, and advance a position, if it is the one that
-- the caller expects. Returns 1 or 0 for committed; position; generation; number of matched entries that the log no
-- longer has; 1 or 0 for caught up; then the length of each queue.
-- KEYS: log, dispatch position, sink positions, then queues.
-- ARGV: sink that catches up or ''; from; to; generation or ''; number of log entries covered or 0; 1 or 0 for "copy even
-- if Redis is full"; then for each match: ID, number of queues, their indexes from 1.
local log, dispatched, sinks = KEYS[1], KEYS[2], KEYS[3]
local catchup, from, to, generation, covered = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local queues = #KEYS - 3

local served = redis.call('HGET', dispatched, 'position') or '0-0'
local current = redis.call('HGET', dispatched, 'generation') or '0'
local position = served
if catchup ~= '' then position = redis.call('HGET', sinks, catchup) or '' end
if position ~= from or (generation ~= '' and generation ~= current) then
  return {0, position, current, 0, 0}
end

-- In a failover, a node can read the log of the old master and enqueue on the new one, which lacks the newest entries. A
-- position after them would skip the entries that the new master stores next, because their IDs may be lower.
if to ~= from and to ~= served and not redis.call('XRANGE', log, to, to)[1] then
  local last, deleted, first = '0-0', nil, nil
  local info = redis.pcall('XINFO', 'STREAM', log) -- an error without a log
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = info[i + 1] end
    if info[i] == 'max-deleted-entry-id' then deleted = info[i + 1] end -- since Redis 7
    if info[i] == 'first-entry' and info[i + 1] then first = info[i + 1][1] end
  end
  -- In a log that has grown past the entry, it was trimmed from the front, deleted, or never stored.
  local never_stored = deleted and first and less(first, to) and less(deleted, to)
  if less(last, to) or never_stored then
    return redis.error_reply('ERR the log of this server ends before the entries that were read from another one')
  end
end

-- A full Redis rejects the first write of a script unless it can only free memory. Without matches, the position must
-- advance nevertheless, because the log is trimmed up to it. So the first write deletes a field that does not exist.
if #ARGV < 7 or ARGV[6] == '1' then redis.call('HDEL', dispatched, '') end

local missing = 0
local i = 7
while i <= #ARGV do
  local id, n = ARGV[i], tonumber(ARGV[i + 1])
  local entry = redis.call('XRANGE', log, id, id)[1]
  if entry then
    for j = i + 2, i + 1 + n do
      -- The relay writes six fields. An entry of another program may have more than Lua can pass on.
      local added = redis.pcall('XADD', KEYS[3 + tonumber(ARGV[j])], id, unpack(entry[2], 1, math.min(#entry[2], 32)))
      -- An earlier run may have added it, if its position was lost.
      if type(added) == 'table' and added.err and not string.find(added.err, 'equal or smaller', 1, true) then
        return redis.error_reply(added.err)
      end
    end
  else
    missing = missing + 1
  end
  i = i + 2 + n
end

local joined = 0
if catchup == '' then
  redis.call('HSET', dispatched, 'position', to)
  if covered == 0 then
    redis.call('HDEL', dispatched, 'added')
  elseif redis.call('HEXISTS', dispatched, 'added') == 1 then
    redis.call('HINCRBY', dispatched, 'added', covered)
  end
elseif less(to, served) then
  redis.call('HSET', sinks, catchup, to)
else
  -- Caught up: the dispatcher serves the sink from here on. The new generation makes it read its state again.
  joined = 1
  redis.call('HSET', sinks, catchup, '+' .. to)
  current = tostring(redis.call('HINCRBY', dispatched, 'generation', 1))
end

local result = {1, to, current, missing, joined}
for q = 1, queues do result[5 + q] = redis.call('XLEN', KEYS[3 + q]) end
return result

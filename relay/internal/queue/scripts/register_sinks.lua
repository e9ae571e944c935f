-- Register sinks in a partition. With serve, make them the set that its dispatcher serves. The hash of sink positions
-- contains the position up to which each sink has been served. A '+' before it means that the dispatcher serves the
-- sink.
-- Returns position and generation of the dispatcher, then the value of each sink in ARGV.
-- KEYS: log, dispatch position, sink positions.
-- ARGV: 1 or 0 for serve; then for each sink its name, and 1 or 0 for "from the start".
local log, dispatched, sinks = KEYS[1], KEYS[2], KEYS[3]

-- A full Redis rejects the first write of a script unless it can only free memory. A dispatcher must start in a full Redis,
-- because it trims the log. So the first write deletes a field that does not exist.
redis.call('HDEL', sinks, '')

-- If nothing was ever dispatched, the whole log is new to every sink.
local stored = redis.call('HGET', dispatched, 'position')
local position, last = stored or '0-0', '0-0'
if stored and redis.call('EXISTS', log) == 1 then
  local info = redis.call('XINFO', 'STREAM', log)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = info[i + 1] end
  end
end
local wanted = {}
for i = 2, #ARGV, 2 do
  local name = ARGV[i]
  wanted[name] = true
  local from = last
  if ARGV[i + 1] == '1' then from = '0-0' end
  redis.call('HSETNX', sinks, name, from)
end

if ARGV[1] == '1' then
  local changed = false
  local all = redis.call('HGETALL', sinks)
  for i = 1, #all, 2 do
    local name, value = all[i], all[i + 1]
    local serving = string.sub(value, 1, 1) == '+'
    local at = value
    if serving then at = string.sub(value, 2) end
    if serving and not wanted[name] then
      -- The sink keeps its position, in case it is configured again.
      if less(at, position) then at = position end
      redis.call('HSET', sinks, name, at)
      changed = true
    elseif wanted[name] and not serving and not less(at, position) then
      redis.call('HSET', sinks, name, '+' .. at)
      changed = true
    end
  end
  if changed or redis.call('HEXISTS', dispatched, 'generation') == 0 then
    redis.call('HINCRBY', dispatched, 'generation', 1)
  end
  redis.call('HSETNX', dispatched, 'position', position)
end

local result = {position, redis.call('HGET', dispatched, 'generation') or '0'}
for i = 2, #ARGV, 2 do
  result[#result + 1] = redis.call('HGET', sinks, ARGV[i])
end
return result

-- Stop serving sinks, which catch up with the log from the position of the dispatcher. Returns the new generation, or '' if
-- position or generation are not what the caller expects.
-- KEYS: dispatch position, sink positions. ARGV: position; generation; names of sinks.
local dispatched, sinks = KEYS[1], KEYS[2]
local position = redis.call('HGET', dispatched, 'position') or '0-0'
if position ~= ARGV[1] or redis.call('HGET', dispatched, 'generation') ~= ARGV[2] then return '' end

-- A full Redis rejects the first write of a script unless it can only free memory. Sinks must be detached then, too.
redis.call('HDEL', sinks, '')
for i = 3, #ARGV do
  local at = redis.call('HGET', sinks, ARGV[i])
  if at and string.sub(at, 1, 1) == '+' then
    at = string.sub(at, 2)
    if less(at, position) then at = position end
    redis.call('HSET', sinks, ARGV[i], at)
  end
end
return tostring(redis.call('HINCRBY', dispatched, 'generation', 1))

-- Append entries to streams and advance a position, if it has the number that the caller expects. Repeating a step
-- appends nothing twice. Returns 1, or 0 if another process has advanced the position.
-- KEYS: hash of the position, then the stream of each entry.
-- ARGV: expected number, or '<' for any number below the next; next number; token of the caller; number of values to
-- set, then name and value of each; number of counters to increment, then name and amount of each; then for each
-- entry the number of XADD's arguments after the stream, and these arguments.
local stored = redis.call('HMGET', KEYS[1], 'number', 'mark')
local number, mark = stored[1] or '', stored[2] or ''
local done = number == ARGV[2] and mark == ARGV[3]
if ARGV[1] == '<' then
  done = number ~= '' and tonumber(number) >= tonumber(ARGV[2])
elseif not done and number ~= ARGV[1] then
  return 0
end
if done then
  -- A repeat must write too, so WAIT covers what the first run stored.
  redis.call('HSET', KEYS[1], 'number', number)
  return 1
end
local a = 4
local sets = tonumber(ARGV[a])
for i = a + 1, a + 2 * sets, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
a = a + 1 + 2 * sets
local counters = tonumber(ARGV[a])
for i = a + 1, a + 2 * counters, 2 do redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1]) end
a = a + 1 + 2 * counters
for k = 2, #KEYS do
  local count = tonumber(ARGV[a])
  redis.call('XADD', KEYS[k], unpack(ARGV, a + 1, a + count))
  a = a + 1 + count
end
redis.call('HSET', KEYS[1], 'number', ARGV[2], 'mark', ARGV[3])
return 1

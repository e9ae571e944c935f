-- Append entries to streams and move a place on, if it is where the caller left it.
-- Returns 1, or 0 where somebody else has moved the place. A repeat of the same step appends nothing twice.
-- KEYS: the hash of the place, then the stream of each entry.
-- ARGV: number of the place, '<' for any below the next; next number; mark of the caller; how many values are set, then
-- name and value of each; how many counters are raised, then name and amount of each; then for each entry how many
-- arguments XADD gets behind the stream, and these.
local place = redis.call('HMGET', KEYS[1], 'number', 'mark')
local number, mark = place[1] or '', place[2] or ''
local done = number == ARGV[2] and mark == ARGV[3]
if ARGV[1] == '<' then
  done = number ~= '' and tonumber(number) >= tonumber(ARGV[2])
elseif not done and number ~= ARGV[1] then
  return 0
end
if done then
  -- A write, so that whoever waits for replicas waits for what was stored before too.
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

-- Append notifications unless their idempotency key is known. Returns the ids; none when the key had another digest.
-- KEYS: log, idempotency key. ARGV: digest, milliseconds to remember, count, then id, topic, hub, account, data of each.
local known = redis.call('GET', KEYS[2])
local ids = {}
if known then
  local cut = string.find(known, '\n', 1, true)
  if string.sub(known, 1, cut - 1) ~= ARGV[1] then
    return {}
  end
  -- A write, so that whoever waits for replicas waits for what was stored the first time too.
  redis.call('PEXPIRE', KEYS[2], math.max(redis.call('PTTL', KEYS[2]), 1))
  for id in string.gmatch(string.sub(known, cut + 1), '[^\n]+') do
    ids[#ids + 1] = id
  end
  return ids
end
for i = 1, tonumber(ARGV[3]) do
  local a = 5 * i - 1
  redis.call('XADD', KEYS[1], '*', 'id', ARGV[a], 'topic', ARGV[a + 1], 'hub', ARGV[a + 2], 'account', ARGV[a + 3], 'data', ARGV[a + 4])
  ids[i] = ARGV[a]
end
redis.call('SET', KEYS[2], ARGV[1] .. '\n' .. table.concat(ids, '\n'), 'PX', ARGV[2])
return ids

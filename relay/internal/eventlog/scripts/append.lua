-- Append notifications unless their idempotency key is known. Returns their IDs, or the IDs stored with the key. The
-- list is empty if the key was stored with another digest.
-- KEYS: log, idempotency key. ARGV: digest; expiry of the key in milliseconds; number of notifications; then for each
-- notification ID, topic, hub, account, data, publisher.
local known = redis.call('GET', KEYS[2])
local ids = {}
if known then
  local cut = string.find(known, '\n', 1, true)
  if string.sub(known, 1, cut - 1) ~= ARGV[1] then
    return {}
  end
  -- A repeat must write too, so WAIT covers what the first request stored.
  redis.call('PEXPIRE', KEYS[2], math.max(redis.call('PTTL', KEYS[2]), 1))
  for id in string.gmatch(string.sub(known, cut + 1), '[^\n]+') do
    ids[#ids + 1] = id
  end
  return ids
end
for i = 1, tonumber(ARGV[3]) do
  local a = 6 * i - 2
  redis.call('XADD', KEYS[1], '*', 'id', ARGV[a], 'topic', ARGV[a + 1], 'hub', ARGV[a + 2],
    'account', ARGV[a + 3], 'data', ARGV[a + 4], 'publisher', ARGV[a + 5])
  ids[i] = ARGV[a]
end
redis.call('SET', KEYS[2], ARGV[1] .. '\n' .. table.concat(ids, '\n'), 'PX', ARGV[2])
return ids

-- Append notifications unless their idempotency key is known. Returns the text that is stored with the key, which contains the IDs of
-- the first request with it. The text is empty if the key was stored with another digest. If the key is new, the script also returns
-- the size of the newer hash, and the size of the older one if it was just replaced, or -1.
-- The keys of a client are in two hashes. When the newer one is older than its time or larger than its size, it replaces
-- the older one. So a client that uses many keys displaces only its own.
-- KEYS: log, newer hash, older hash. ARGV: idempotency key; digest; time in milliseconds and size in bytes of a hash; text for the
-- key; number of notifications; then for each notification ID, topic, hub, account, data, publisher.
local log, newer, older = KEYS[1], KEYS[2], KEYS[3]
local key, digest, lifetime, size, text = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

-- A full Redis must reject the first write, because it does not reject later ones of a script. A repeat must write too, so
-- WAIT covers what the first request stored.
local used, left = redis.call('HINCRBY', newer, 'size', 0), redis.call('PTTL', newer)
if left < 0 then
  redis.call('PEXPIRE', newer, 2 * lifetime)
end
local known = redis.call('HGET', newer, key) or redis.call('HGET', older, key)
if known then
  local cut = string.find(known, '\n', 1, true)
  if string.sub(known, 1, cut - 1) ~= digest then
    return {''}
  end
  return {string.sub(known, cut + 1)}
end
local replaced = -1
if left >= 0 and (left <= lifetime or used >= size) then
  redis.call('UNLINK', older)
  redis.call('RENAME', newer, older)
  redis.call('HSET', newer, 'size', 0)
  redis.call('PEXPIRE', newer, 2 * lifetime)
  replaced = used
end
for i = 1, tonumber(ARGV[6]) do
  local a = 6 * i + 1
  redis.call('XADD', log, '*', 'id', ARGV[a], 'topic', ARGV[a + 1], 'hub', ARGV[a + 2],
    'account', ARGV[a + 3], 'data', ARGV[a + 4], 'publisher', ARGV[a + 5])
end
local value = digest .. '\n' .. text
redis.call('HSET', newer, key, value)
-- 64 bytes for the memory of Redis itself
return {text, redis.call('HINCRBY', newer, 'size', #key + #value + 64), replaced}

-- Replaces a key if it has not changed since it was read, and changes the version.
-- KEYS: keys. ARGV: name, JSON that was read ("" if there was none), new JSON ("" removes the key).
-- Returns 1, or 0 if the key has changed.
local current = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if current ~= ARGV[2] then
  return 0
end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
redis.call('HSET', KEYS[1], '', next_version(redis.call('HGET', KEYS[1], '')))
return 1

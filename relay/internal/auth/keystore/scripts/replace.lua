-- Replaces a key if it has not changed since it was read, and changes the version. The version is the time in milliseconds, or
-- one more than before, so it does not repeat after a failover that loses the latest changes.
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
local before = tonumber(redis.call('HGET', KEYS[1], '') or '0')
local t = redis.call('TIME')
local version = math.max(before + 1, t[1] * 1000 + math.floor(t[2] / 1000))
redis.call('HSET', KEYS[1], '', string.format('%.0f', version))
return 1

-- Add a notification to the open digest of its group. A repetition changes nothing while that digest is open.
-- KEYS: retry, records, arrivals, digests, digest, digestcount, digestbytes, order, ordermembers. ARGV:
--   1: 1 to add it only if something of the sink is waiting (0: always)
--   2: group
--   3: milliseconds until a new digest is sealed
--   4: ID of a new digest
--   5: shared values of its notifications (JSON)
--   6, 7, 8: maximum number of listed notifications, of their bytes, and of remembered IDs
--   9, 10: ID and topic of the notification
--   11, 12: its arrival time (unix milliseconds, RFC 3339)
--   13: the encoded notification
--   14: end of its claim if it is scheduled, or ''
--   15: maximum number of open digests and scheduled deliveries when a digest is opened (0: no limit)
--   16: maximum memory of all open digests of the sink in bytes (0: no limit), above which no digest is opened and open ones only
--       count further notifications, without remembering their IDs
-- A scheduled notification leaves the retry queue, unless its claim was lost.
-- Returns milliseconds until the digest is sealed (-1: not added, -2: claim lost), and 1 if that time is new.
local at = now()
-- Estimated memory of a digest without its notifications and shared values, of the count of a topic without its name, and of a
-- remembered ID, in bytes.
local digest_bytes, topic_bytes, id_bytes = 1500, 60, 200
local digest, id = KEYS[5], ARGV[9]
local all_bytes, max_bytes = tonumber(redis.call('GET', KEYS[7]) or 0), tonumber(ARGV[16])
local size = 0 -- added by this call
if ARGV[1] == '1' and redis.call('ZCARD', KEYS[4]) == 0
  and redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', at)) == 0 then
  return {-1, 0}
end
local is_claimed = ARGV[14] ~= ''
if is_claimed and not holds_claim(id, ARGV[14]) then
  return {-2, 0}
end
if redis.call('EXISTS', digest) == 0 then
  local max = tonumber(ARGV[15])
  if not is_claimed and max > 0 and redis.call('ZCARD', KEYS[4]) + depth() >= max or max_bytes > 0 and all_bytes >= max_bytes then
    return {-1, 0}
  end
end
if is_claimed then
  remove(id)
end
local is_new = redis.call('HSETNX', digest, 'id', ARGV[4])
if is_new == 1 then
  redis.call('HSET', digest, 'by', ARGV[5])
  size = digest_bytes + #ARGV[5]
end
-- An open digest keeps its time, unless that was set when the wait was longer.
local due, earliest = tonumber(redis.call('ZSCORE', KEYS[4], ARGV[2])), at + tonumber(ARGV[3])
if not due or due > earliest then
  due, is_new = earliest, 1
  redis.call('ZADD', KEYS[4], string.format('%.0f', due), ARGV[2])
end
local wait = math.max(0, due - at)
if redis.call('HEXISTS', digest, 'seen:' .. id) == 1 then
  return {wait, is_new}
end
local count = redis.call('HINCRBY', digest, 'count', 1)
redis.call('INCR', KEYS[6])
if redis.call('HINCRBY', digest, 'topic:' .. ARGV[10], 1) == 1 then
  size = size + topic_bytes + #ARGV[10]
end
-- Keep the last IDs, because those arrive again after a crash.
local slot = 'place:' .. count % tonumber(ARGV[8])
local old = redis.call('HGET', digest, slot)
if old then
  redis.call('HDEL', digest, 'seen:' .. old)
end
if old or max_bytes == 0 or all_bytes < max_bytes then
  redis.call('HSET', digest, slot, id, 'seen:' .. id, '')
  size = size + (old and 0 or id_bytes)
end
local arrived = tonumber(ARGV[11])
local f = redis.call('HMGET', digest, 'first_ms', 'last_ms', 'kept', 'bytes')
if not f[1] or arrived < tonumber(f[1]) then
  redis.call('HSET', digest, 'first_ms', ARGV[11], 'first', ARGV[12])
end
if not f[2] or arrived > tonumber(f[2]) then
  redis.call('HSET', digest, 'last_ms', ARGV[11], 'last', ARGV[12])
end
local listed, bytes = tonumber(f[3]) or 0, tonumber(f[4]) or 0
local item = #ARGV[13]
if listed == 0 or listed < tonumber(ARGV[6]) and bytes + item <= tonumber(ARGV[7])
  and (max_bytes == 0 or all_bytes + size + item <= max_bytes) then
  size = size + item
  redis.call('HSET', digest, 'item:' .. listed, ARGV[13], 'kept', listed + 1, 'bytes', bytes + item)
end
if size > 0 then
  redis.call('HINCRBY', digest, 'size', size)
  redis.call('INCRBY', KEYS[7], size)
end
return {wait, is_new}

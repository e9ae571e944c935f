-- Gather a notification into the open digest of its group. A repeat changes nothing while that digest is open.
-- KEYS: retry, parked, since, digests, digest, gathering, line, lined. ARGV: 1 to gather only where something of the sink
-- waits already (0: in any case), group, milliseconds until a new digest is sealed, id of a new digest, what its notifications have in
-- common (JSON), how many it lists, how many bytes of them, how many ids it remembers; then of the notification: id, topic,
-- when it came (unix milliseconds, and as text), how it is parked, end of the claim where it is parked, or '', and how
-- many open digests and parked deliveries there may be before another digest is opened (0: no bound). A parked one leaves
-- the delay queue, unless the claim was lost.
-- Returns milliseconds until the digest is sealed, -1 where nothing was gathered, -2 where the claim was
-- lost; and 1 where that time is new.
local at = now()
local open, id = KEYS[5], ARGV[9]
if ARGV[1] == '1' and redis.call('ZCARD', KEYS[4]) == 0
  and redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', at)) == 0 then
  return {-1, 0}
end
if ARGV[14] ~= '' then
  if not held(id, ARGV[14]) then
    return {-2, 0}
  end
  leave(id)
elseif tonumber(ARGV[15]) > 0 and redis.call('ZCARD', KEYS[4]) + parked() >= tonumber(ARGV[15])
  and redis.call('EXISTS', open) == 0 then
  return {-1, 0}
end
local new = redis.call('HSETNX', open, 'id', ARGV[4])
if new == 1 then
  redis.call('HSET', open, 'by', ARGV[5])
end
-- An open digest keeps its time, unless that was chosen when the wait was longer.
local due, soonest = tonumber(redis.call('ZSCORE', KEYS[4], ARGV[2])), at + tonumber(ARGV[3])
if not due or due > soonest then
  due, new = soonest, 1
  redis.call('ZADD', KEYS[4], string.format('%.0f', due), ARGV[2])
end
local wait = math.max(0, due - at)
if redis.call('HEXISTS', open, 'seen:' .. id) == 1 then
  return {wait, new}
end
local count = redis.call('HINCRBY', open, 'count', 1)
redis.call('INCR', KEYS[6])
redis.call('HINCRBY', open, 'topic:' .. ARGV[10], 1)
-- The ids that came last are remembered, since those are what comes again after a crash.
local place = 'place:' .. count % tonumber(ARGV[8])
local old = redis.call('HGET', open, place)
if old then
  redis.call('HDEL', open, 'seen:' .. old)
end
redis.call('HSET', open, place, id, 'seen:' .. id, '')
local came = tonumber(ARGV[11])
local f = redis.call('HMGET', open, 'first_ms', 'last_ms', 'kept', 'bytes')
if not f[1] or came < tonumber(f[1]) then
  redis.call('HSET', open, 'first_ms', ARGV[11], 'first', ARGV[12])
end
if not f[2] or came > tonumber(f[2]) then
  redis.call('HSET', open, 'last_ms', ARGV[11], 'last', ARGV[12])
end
local kept, bytes = tonumber(f[3]) or 0, tonumber(f[4]) or 0
if kept == 0 or kept < tonumber(ARGV[6]) and bytes + #ARGV[13] <= tonumber(ARGV[7]) then
  redis.call('HSET', open, 'item:' .. kept, ARGV[13], 'kept', kept + 1, 'bytes', bytes + #ARGV[13])
end
return {wait, new}

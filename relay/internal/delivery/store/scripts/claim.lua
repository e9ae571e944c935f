-- Claim due deliveries by raising their score to the end of the lease.
-- KEYS: retry, records, arrivals, order, ordermembers. ARGV: maximum number of claims, lease in milliseconds, 1 to release
-- the order.
-- Returns the end of the lease, milliseconds until the next delivery is due (-1: none), IDs without a record (removed),
-- ID and record of each claimed delivery, and the number of scheduled deliveries.
local at = now()
local claim_end = lease_end(at, tonumber(ARGV[2]))
local lost, claimed = {}, {}
local max = tonumber(ARGV[1])

-- release makes deliveries due that wait for a claimed one, because batches and digests collect several. room limits the time
-- of the script. If more are waiting, the next one becomes due and releases more.
local room = 1000
local function release(id)
  local member = redis.call('HGET', members, id)
  if not member or room == 0 then
    return
  end
  local key = string.sub(member, 1, 24)
  local list = redis.call('ZRANGEBYLEX', order, '[' .. key, '(' .. key .. ':', 'LIMIT', 0, room)
  room = room - #list
  for _, m in ipairs(list) do
    redis.call('ZREM', order, m)
    redis.call('HDEL', members, string.sub(m, 41))
    make_due(string.sub(m, 41))
  end
  make_due(first_of(key))
end

if max > 0 then
  local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', at), 'LIMIT', 0, max)
  if ids[1] then
    redis.call('ZREM', KEYS[1], ids[1]) -- see retry_queue.lua
  end
  for _, id in ipairs(ids) do
    local body = redis.call('HGET', KEYS[2], id)
    if body then
      redis.call('ZADD', KEYS[1], claim_end, id)
      claimed[#claimed + 1] = id
      claimed[#claimed + 1] = body
    else
      remove(id)
      lost[#lost + 1] = id
    end
  end
end
if ARGV[3] == '1' and claimed[1] and redis.call('EXISTS', order) == 1 then
  for i = 1, #claimed, 2 do
    release(claimed[i])
  end
end
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local wait = -1
if head[2] then
  wait = math.max(0, math.ceil(tonumber(head[2])) - at)
end
return {claim_end, wait, lost, claimed, depth()}

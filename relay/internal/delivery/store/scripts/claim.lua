-- Claim due deliveries by raising their score to the end of the lease.
-- KEYS: retry, records, arrivals, order, ordermembers. ARGV: maximum number of claims, lease in milliseconds, 1 to release
-- the order.
-- Returns the end of the lease, milliseconds until the next delivery is due (-1: none), IDs without a record (removed),
-- ID and record of each claimed delivery, and the number of scheduled deliveries.
local at = now()
local claim_end = lease_end(at, tonumber(ARGV[2]))
local lost, claimed = {}, {}
local max = tonumber(ARGV[1])

-- release makes the next deliveries with the ordering key of a delivery due, because batches and digests collect several. The
-- first of the others releases more when it is claimed.
local function release(id)
  local member = redis.call('HGET', members, id)
  if not member then
    return
  end
  local key = string.sub(member, 1, 24)
  for _, m in ipairs(redis.call('ZRANGEBYLEX', order, '[' .. key, '(' .. key .. ':', 'LIMIT', 0, 1000)) do
    local other = string.sub(m, 41)
    redis.call('ZREM', order, m)
    redis.call('HDEL', members, other)
    if tonumber(redis.call('ZSCORE', KEYS[1], other) or 0) >= never then
      redis.call('ZADD', KEYS[1], string.format('%.0f', at), other)
    end
  end
  local following = first_of(key)
  if following then
    redis.call('ZADD', KEYS[1], string.format('%.0f', at), following)
  end
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

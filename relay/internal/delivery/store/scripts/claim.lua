-- Claim due deliveries by raising their score to the end of the lease.
-- KEYS: retry, records, arrivals, order, ordermembers. ARGV: maximum number of claims, lease in milliseconds.
-- Returns the end of the lease, milliseconds until the next delivery is due (-1: none), IDs without a record (removed),
-- ID and record of each claimed delivery, and the number of scheduled deliveries.
local at = now()
local claim_end = lease_end(at, tonumber(ARGV[2]))
local lost, claimed = {}, {}
local max = tonumber(ARGV[1])
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
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local wait = -1
if head[2] then
  wait = math.max(0, math.ceil(tonumber(head[2])) - at)
end
return {claim_end, wait, lost, claimed, depth()}

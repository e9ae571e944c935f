-- Claim due deliveries by raising their score to the end of the claim, as claim_end has it.
-- KEYS: retry, parked, since, line, lined. ARGV: most to claim, milliseconds of the claim.
-- Returns the end of the claim, milliseconds until the next is due (-1 for none), the ids without a body (now removed),
-- id and body of each claimed, and how many are parked.
local at = now()
local ends = claim_end(at, tonumber(ARGV[2]))
local lost, claimed = {}, {}
local most = tonumber(ARGV[1])
if most > 0 then
  local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', at), 'LIMIT', 0, most)
  if ids[1] then
    redis.call('ZREM', KEYS[1], ids[1]) -- see retry_queue.lua
  end
  for _, id in ipairs(ids) do
    local body = redis.call('HGET', KEYS[2], id)
    if body then
      redis.call('ZADD', KEYS[1], ends, id)
      claimed[#claimed + 1] = id
      claimed[#claimed + 1] = body
    else
      leave(id)
      lost[#lost + 1] = id
    end
  end
end
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local wait = -1
if head[2] then
  wait = math.max(0, math.ceil(tonumber(head[2])) - at)
end
return {ends, wait, lost, claimed, parked()}

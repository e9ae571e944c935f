-- The retry queue of a sink. This is the start of every script that changes it.
-- KEYS[1..3]: retry, records, arrivals. The last two: order, ordermembers. A script's own keys are between them.
-- A full Redis rejects the first write of a script unless that write can only free memory, and no write after it.
-- Scripts that shorten the queue, move an event, or store a small value therefore start with a removal, perhaps of nothing.
local order, members = KEYS[#KEYS - 1], KEYS[#KEYS]

-- never is the due time of a delivery that waits for another one with its ordering key. It is in the year 2252. Its text needs
-- a decimal point for the Lua of miniredis, and earlier builds used a later time.
local never = 8.9e12

local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- lease_end returns the score of a delivery that is claimed for some milliseconds. The fraction distinguishes it from a
-- due time.
local function lease_end(at, lease)
  return string.format('%.0f.5', at + lease - 1)
end

-- first_of returns the ID of the first delivery with an ordering key, or nil. A member is the key (24 hexadecimal
-- digits), a rising number (16 digits) and the ID, so the members of a key are one range.
local function first_of(key)
  local member = redis.call('ZRANGEBYLEX', order, '[' .. key, '(' .. key .. ':', 'LIMIT', 0, 1)[1]
  return member and string.sub(member, 41)
end

-- schedule stores a delivery and returns 1. If it is already stored, it stays unchanged, and schedule returns 0. With
-- an ordering key, the delivery is never due before it is the first with that key.
local function schedule(id, body, due, since, key)
  local new = redis.call('HSETNX', KEYS[2], id, body)
  if new == 1 and key and key ~= '' then
    if first_of(key) then
      due = never
    end
    local member = key .. string.format('%016.0f', redis.call('HINCRBY', members, '', 1)) .. id
    redis.call('ZADD', order, 0, member)
    redis.call('HSET', members, id, member)
  end
  redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', due), id)
  redis.call('ZADD', KEYS[3], 'NX', string.format('%.0f', since), id)
  return new
end

-- depth returns the number of scheduled deliveries.
local function depth()
  return redis.call('ZCARD', KEYS[1])
end

-- is_full reports whether the queue has reached a limit, where 0 means no limit.
local function is_full(max)
  return max > 0 and depth() >= max
end

-- holds_claim reports whether the claim on a delivery is still valid.
local function holds_claim(id, claim_end)
  local score = redis.call('ZSCORE', KEYS[1], id)
  return score and tonumber(score) == tonumber(claim_end)
end

-- make_due makes a delivery due if it waits for another one with its ordering key, and returns whether it did.
local function make_due(id)
  if not id or tonumber(redis.call('ZSCORE', KEYS[1], id) or 0) < never then
    return false
  end
  redis.call('ZADD', KEYS[1], string.format('%.0f', now()), id)
  return true
end

-- remove removes a delivery. If it was the first with its ordering key, the next one becomes due, and remove returns
-- true.
local function remove(id)
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[3], id)
  local member = redis.call('HGET', members, id)
  if not member then
    return false
  end
  redis.call('HDEL', members, id)
  redis.call('ZREM', order, member)
  return make_due(first_of(string.sub(member, 1, 24)))
end


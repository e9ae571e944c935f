-- The delay queue of a sink, in front of every script that changes it. KEYS[1..3]: retry, parked, since.
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- enter parks a delivery that is not parked yet and returns 1; one that is stays as it is, and 0 is returned.
local function enter(id, body, due, since)
  local new = redis.call('HSETNX', KEYS[2], id, body)
  redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', due), id)
  redis.call('ZADD', KEYS[3], 'NX', string.format('%.0f', since), id)
  return new
end

-- parked is how many deliveries there are.
local function parked()
  return redis.call('ZCARD', KEYS[1])
end

-- full tells whether there is no room for another; most is 0 for no bound.
local function full(most)
  return most > 0 and parked() >= most
end

-- held tells whether the claim on a delivery lasts.
local function held(id, ends)
  local score = redis.call('ZSCORE', KEYS[1], id)
  return score and tonumber(score) == tonumber(ends)
end

-- leave removes a delivery.
local function leave(id)
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[3], id)
end


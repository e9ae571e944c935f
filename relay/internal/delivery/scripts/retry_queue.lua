-- The delay queue of a sink, in front of every script that changes it. KEYS[1..3]: retry, parked, since; the last two:
-- line, lined.
-- A Redis that is full refuses a script's first write, unless that can only make room, and none after it. What works off the
-- queue therefore begins by removing.
local line, lined = KEYS[#KEYS - 1], KEYS[#KEYS]

-- never is the due time, in the year 2255, of what waits behind another delivery of its ordering key.
local never = 9e12

local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- claim_end is the score of what is claimed at a time for so many milliseconds, less a half, which tells it from a due time.
local function claim_end(at, lease)
  return string.format('%.0f.5', at + lease - 1)
end

-- first returns the id of the first in the line of an ordering key, if there is one. The members of the line are the
-- key, 24 hexadecimal digits, then 16 digits that count up, then the id: all of a key are one range.
local function first(key)
  local member = redis.call('ZRANGEBYLEX', line, '[' .. key, '(' .. key .. ':', 'LIMIT', 0, 1)[1]
  return member and string.sub(member, 41)
end

-- enter parks a delivery that is not parked yet and returns 1; one that is stays as it is, and 0 is returned. With an
-- ordering key it goes to the end of that key's line, and unless it is the first there, it is not due before it is.
local function enter(id, body, due, since, key)
  local new = redis.call('HSETNX', KEYS[2], id, body)
  if new == 1 and key and key ~= '' then
    if first(key) then
      due = never
    end
    local member = key .. string.format('%016.0f', redis.call('HINCRBY', lined, '', 1)) .. id
    redis.call('ZADD', line, 0, member)
    redis.call('HSET', lined, id, member)
  end
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

-- leave removes a delivery, and makes the next of its line due where it was the first. It tells whether there was one.
local function leave(id)
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[3], id)
  local member = redis.call('HGET', lined, id)
  if not member then
    return false
  end
  redis.call('HDEL', lined, id)
  redis.call('ZREM', line, member)
  local following = first(string.sub(member, 1, 24))
  if following and tonumber(redis.call('ZSCORE', KEYS[1], following) or 0) >= never then
    redis.call('ZADD', KEYS[1], string.format('%.0f', now()), following)
    return true
  end
  return false
end


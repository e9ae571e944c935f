-- Seal a batch: from now on it is a parked delivery like any other, claimed by whoever sealed it. A repeat after a lost answer
-- changes nothing but that it is due at once.
-- KEYS: retry, parked, since, batched, batches, line, lined. ARGV: id of the batch, milliseconds of the claim, when its oldest came
-- (unix milliseconds), how many ids are remembered; then of each notification, in order: id, how it is parked, and the
-- end of the claim where it is parked, or ''. A parked one leaves the delay queue. Fresh ones that another batch holds
-- already come from a queue whose acks a killed node has not stored, and are left out, as are lost claims.
-- Returns the end of the claim ('' where nothing was sealed, '0' for a repeat), how many are parked now, and the places of
-- those that were left out, counted from 0.
local at = now()
local id = ARGV[1]
if redis.call('ZSCORE', KEYS[1], id) then
  redis.call('ZADD', KEYS[1], string.format('%.0f', at), id)
  return {'0', parked(), {}}
end
local fresh, known = {}, {}
for a = 5, #ARGV, 3 do
  if ARGV[a + 2] == '' then
    fresh[#fresh + 1] = ARGV[a]
  end
end
if fresh[1] then
  for i, place in ipairs(redis.call('HMGET', KEYS[4], unpack(fresh))) do
    known[fresh[i]] = place
  end
end
local out, items, new, ids = {}, {}, {}, {}
for a = 5, #ARGV, 3 do
  local one, ends = ARGV[a], ARGV[a + 2]
  local takes = false
  if ends ~= '' then
    takes = held(one, ends)
    if takes then
      leave(one)
    end
  elseif not known[one] then
    takes, known[one] = true, true
    new[#new + 1], new[#new + 2] = one, ''
    ids[#ids + 1] = one
  end
  if takes then
    items[#items + 1] = ARGV[a + 1]
  else
    out[#out + 1] = (a - 5) / 3
  end
end
if not items[1] then
  return {'', parked(), out}
end
local ends = at + tonumber(ARGV[2])
enter(id, '{"made":0,"attempts":[],"batch":true}\n' .. table.concat(items), ends, tonumber(ARGV[3]))
if new[1] then
  redis.call('HSET', KEYS[4], unpack(new))
  redis.call('LPUSH', KEYS[5], table.concat(ids, ' '))
  while redis.call('HLEN', KEYS[4]) > tonumber(ARGV[4]) and redis.call('LLEN', KEYS[5]) > 1 do
    local old = {}
    for one in string.gmatch(redis.call('RPOP', KEYS[5]), '%S+') do
      old[#old + 1] = one
    end
    redis.call('HDEL', KEYS[4], unpack(old))
  end
end
ends = claim_end(at, tonumber(ARGV[2]))
redis.call('ZADD', KEYS[1], ends, id)
return {ends, parked(), out}

-- Make a scheduled delivery of a batch and claim it. A repetition after a lost reply only makes it due at once.
-- KEYS: retry, records, arrivals, batchids, batchlog, order, ordermembers. ARGV: ID of the batch, lease in milliseconds, arrival time
-- of its oldest notification (unix milliseconds), number of remembered IDs, then of each notification in order: ID,
-- encoded notification, and the end of its claim if it is scheduled, or ''.
-- A scheduled notification leaves the retry queue, and is excluded if its claim was lost. A fresh one is excluded if an
-- earlier batch contains it, because a killed node did not store its ack.
-- Returns the end of the claim ('': nothing sealed, '0': a repetition), the number of scheduled deliveries, and the
-- indexes of the excluded notifications, starting at 0.
local at = now()
local id = ARGV[1]
if redis.call('ZSCORE', KEYS[1], id) then
  redis.call('ZADD', KEYS[1], string.format('%.0f', at), id)
  return {'0', depth(), {}}
end
local fresh, is_known = {}, {}
for a = 5, #ARGV, 3 do
  if ARGV[a + 2] == '' then
    fresh[#fresh + 1] = ARGV[a]
  end
end
if fresh[1] then
  for i, known in ipairs(redis.call('HMGET', KEYS[4], unpack(fresh))) do
    is_known[fresh[i]] = known
  end
end
local excluded, items, new_fields, new_ids = {}, {}, {}, {}
for a = 5, #ARGV, 3 do
  local item, claim_end = ARGV[a], ARGV[a + 2]
  local is_included = false
  if claim_end ~= '' then
    is_included = holds_claim(item, claim_end)
    if is_included then
      remove(item)
    end
  elseif not is_known[item] then
    is_included, is_known[item] = true, true
    new_fields[#new_fields + 1], new_fields[#new_fields + 2] = item, ''
    new_ids[#new_ids + 1] = item
  end
  if is_included then
    items[#items + 1] = ARGV[a + 1]
  else
    excluded[#excluded + 1] = (a - 5) / 3
  end
end
if not items[1] then
  return {'', depth(), excluded}
end
local lease = tonumber(ARGV[2])
schedule(id, '{"made":0,"attempts":[],"batch":true}\n' .. table.concat(items), at + lease, tonumber(ARGV[3]))
if new_ids[1] then
  redis.call('HSET', KEYS[4], unpack(new_fields))
  redis.call('LPUSH', KEYS[5], table.concat(new_ids, ' '))
  while redis.call('HLEN', KEYS[4]) > tonumber(ARGV[4]) and redis.call('LLEN', KEYS[5]) > 1 do
    local old = {}
    for one in string.gmatch(redis.call('RPOP', KEYS[5]), '%S+') do
      old[#old + 1] = one
    end
    redis.call('HDEL', KEYS[4], unpack(old))
  end
end
local claim_end = lease_end(at, lease)
redis.call('ZADD', KEYS[1], claim_end, id)
return {claim_end, depth(), excluded}

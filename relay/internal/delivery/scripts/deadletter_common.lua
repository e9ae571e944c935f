-- letter writes a dead letter in place of a former one of that delivery. fields are names and values. Beyond most (0: no
-- bound) the oldest go, few at a time, since most may have been more before. Returns how many went.
local function letter(deadletters, index, id, most, fields)
  local old = redis.call('HGET', index, id)
  if old then
    redis.call('XDEL', deadletters, old)
  end
  redis.call('HSET', index, id, redis.call('XADD', deadletters, '*', unpack(fields)))
  local over = redis.call('XLEN', deadletters) - most
  if most <= 0 or over <= 0 then
    return 0
  end
  local oldest = redis.call('XRANGE', deadletters, '-', '+', 'COUNT', math.min(over, 10))
  for _, entry in ipairs(oldest) do
    redis.call('XDEL', deadletters, entry[1])
    for i = 1, #entry[2], 2 do
      if entry[2][i] == 'id' and redis.call('HGET', index, entry[2][i + 1]) == entry[1] then
        redis.call('HDEL', index, entry[2][i + 1])
      end
    end
  end
  return #oldest
end


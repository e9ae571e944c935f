-- letter writes a dead letter in place of a former one of that delivery. fields are names and values.
local function letter(deadletters, index, id, fields)
  local old = redis.call('HGET', index, id)
  if old then
    redis.call('XDEL', deadletters, old)
  end
  redis.call('HSET', index, id, redis.call('XADD', deadletters, '*', unpack(fields)))
end


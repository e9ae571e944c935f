-- In front of every script of the jobs. A Redis that is full refuses a script's first write and none after it, so each is
-- done whole or not at all.

local function now()
  local t = redis.call('TIME')
  return string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
end

-- tell appends the events that begin at an argument to the log.
local function tell(log, at)
  for i = at, #ARGV, 5 do
    redis.call('XADD', log, '*', 'id', ARGV[i], 'topic', ARGV[i + 1], 'hub', ARGV[i + 2], 'account', ARGV[i + 3], 'data', ARGV[i + 4])
  end
end

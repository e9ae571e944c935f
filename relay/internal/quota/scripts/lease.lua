-- Take tokens from a token bucket. n and b are the available notifications and bytes at the time at, in seconds of Redis.
-- KEYS: bucket. ARGV: notifications and bytes per second (0: no limit), burst in seconds, notifications and bytes that
-- are needed, notifications and bytes that are wanted.
-- Returns the granted notifications and bytes, and the milliseconds until what is needed is available.
local t = redis.call('TIME')
local now = t[1] + t[2] / 1000000
local burst = tonumber(ARGV[3])
local state = redis.call('HMGET', KEYS[1], 'n', 'b', 'at')
local elapsed = math.max(0, now - (tonumber(state[3]) or now))

local tokens, granted, wait, refill = {}, {}, 0, 0
for i = 1, 2 do
  local rate, need, want = tonumber(ARGV[i]), tonumber(ARGV[3 + i]), tonumber(ARGV[5 + i])
  local capacity = rate * burst
  tokens[i] = math.min(capacity, (tonumber(state[i]) or capacity) + elapsed * rate)
  granted[i] = math.max(need, math.min(want, math.floor(tokens[i])))
  -- A request beyond the capacity is granted if the bucket is full, and leaves a debt.
  local missing = math.min(need, capacity) - tokens[i]
  if rate > 0 and missing > 0 then
    wait = math.max(wait, missing / rate)
  end
end
if wait > 0 then
  return {0, 0, math.ceil(wait * 1000)}
end
for i = 1, 2 do
  local rate = tonumber(ARGV[i])
  if rate > 0 then
    tokens[i] = tokens[i] - granted[i]
    refill = math.max(refill, burst - tokens[i] / rate)
  end
end
redis.call('HSET', KEYS[1], 'n', tokens[1], 'b', tokens[2], 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil(refill * 1000) + 1000)
return {granted[1], granted[2], 0}

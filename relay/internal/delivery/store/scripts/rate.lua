-- Limit the start of attempts with the generic cell rate algorithm (GCRA). tat is the theoretical arrival time of the
-- next attempt. All times are microseconds of Redis.
-- KEYS: rate. ARGV: number of attempts that want to start (negative: did not start), interval, burst, and 'spent' if
-- that many requests were made already in addition to attempts.
-- Returns the number of attempts that may start, microseconds until the next one may, and 1 during a cooldown.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local wanted, interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local state = redis.call('HMGET', KEYS[1], 'tat', 'rest')
local tat, cooldown_end = tonumber(state[1]) or 0, tonumber(state[2]) or 0
if cooldown_end > now then
  return {0, math.ceil(cooldown_end - now), 1}
end
-- Two requests per attempt of a full burst cannot move tat that far, so the rate was lower before, or the clock was
-- ahead. The minute is for sinks that share this rate with different limits.
local is_stale = tat > now + 2 * burst * interval + 60e6
if is_stale then
  tat = now + burst * interval
end
local granted = wanted
if wanted > 0 then
  tat = math.max(tat, now)
  if ARGV[4] ~= 'spent' then
    -- 0.001 corrects the rounding of the division. It does not accumulate.
    granted = math.max(0, math.min(wanted, math.floor((burst * interval - (tat - now)) / interval + 0.001)))
  end
end
tat = tat + granted * interval
if granted ~= 0 or is_stale then
  if tat > now then
    redis.call('HSET', KEYS[1], 'tat', string.format('%.2f', tat))
    redis.call('PEXPIRE', KEYS[1], math.ceil((tat - now) / 1000) + 1)
  else
    redis.call('DEL', KEYS[1])
  end
end
return {math.max(0, granted), math.max(0, math.ceil(tat - now - (burst - 1) * interval)), 0}

-- Let attempts begin at a rate, by GCRA: tat is when the next would begin at an even pace. Microseconds of Redis.
-- KEYS: rate. ARGV: how many want to begin (negative: how many did not begin after all), microseconds between two, burst,
-- and 'spent' where nobody wants to begin, but so many requests were made besides.
-- Returns how many may begin, microseconds until the next may, and 1 while the destination has asked for a rest.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local wanted, pace, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local state = redis.call('HMGET', KEYS[1], 'tat', 'rest')
local tat, rest = tonumber(state[1]) or 0, tonumber(state[2]) or 0
if rest > now then
  return {0, math.ceil(rest - now), 1}
end
-- No attempt of this pace was put off that far, each with a further request: the rate was lower before, or the clock ran ahead.
-- Less than a minute is let be, since sinks that share a rate may name it differently.
local far = tat > now + 2 * burst * pace + 60e6
if far then
  tat = now + burst * pace
end
local granted = wanted
if wanted > 0 then
  tat = math.max(tat, now)
  if ARGV[4] ~= 'spent' then
    -- The thousandth makes up for what division loses; it does not add up.
    granted = math.max(0, math.min(wanted, math.floor((burst * pace - (tat - now)) / pace + 0.001)))
  end
end
tat = tat + granted * pace
if granted ~= 0 or far then
  if tat > now then
    redis.call('HSET', KEYS[1], 'tat', string.format('%.2f', tat))
    redis.call('PEXPIRE', KEYS[1], math.ceil((tat - now) / 1000) + 1)
  else
    redis.call('DEL', KEYS[1])
  end
end
return {math.max(0, granted), math.max(0, math.ceil(tat - now - (burst - 1) * pace)), 0}

-- Park a claimed delivery again, unless the claim was lost.
-- KEYS: retry, parked. ARGV: id, end of the claim, milliseconds to wait, body.
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then
  return 0
end
local t = redis.call('TIME')
local due = t[1] * 1000 + math.floor(t[2] / 1000) + tonumber(ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
redis.call('ZADD', KEYS[1], string.format('%.0f', due), ARGV[1])
return 1

-- Index dead letters that were written without, the newest first: of two with one id the newer is found.
-- KEYS: deadletters, index. ARGV: last position as XREVRANGE takes it, how many. Returns the oldest position seen, or ''.
local oldest = ''
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])) do
  oldest = entry[1]
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'id' and entry[2][i + 1] ~= '' then
      redis.call('HSETNX', KEYS[2], entry[2][i + 1], oldest)
    end
  end
end
return oldest

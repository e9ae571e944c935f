-- Make due at once what waits for another attempt. What is claimed, or waits behind another of its ordering key, stays as it is.
-- KEYS: retry, parked, since, line, lined. ARGV: the due time from which on to look, as ZRANGEBYSCORE takes it, or '' for all;
-- how many to look at.
-- Returns how many became due, and from where to go on, '' for nowhere.
local at = now()
local most = tonumber(ARGV[2])
local from = ARGV[1]
if from == '' or tonumber((string.gsub(from, '^%(', ''))) <= at then -- time may have overtaken the last step
  from = string.format('(%.0f', at)
end
local list = redis.call('ZRANGEBYSCORE', KEYS[1], from, string.format('(%.0f', never), 'WITHSCORES', 'LIMIT', 0, most)
local waiting = {}
for i = 1, #list, 2 do
  if tonumber(list[i + 1]) % 1 == 0 then
    waiting[#waiting + 1] = list[i]
  end
end
if waiting[1] then
  redis.call('ZREM', KEYS[1], waiting[1]) -- see retry_queue.lua
end
for _, id in ipairs(waiting) do
  redis.call('ZADD', KEYS[1], string.format('%.0f', at), id)
end
if #list < 2 * most then
  return {#waiting, ''}
end
-- All that was due when the last one was is due now already, unless that one is claimed, as are all at its time.
from = list[#list]
if tonumber(from) % 1 ~= 0 then
  from = '(' .. from
end
return {#waiting, from}

-- Make scheduled deliveries due at once. Claimed deliveries stay unchanged, as do those that wait for another one with
-- their ordering key.
-- KEYS: retry, records, arrivals, order, ordermembers. ARGV: due time to start at as ZRANGEBYSCORE takes it ('': the first),
-- maximum number of deliveries.
-- Returns the number of deliveries that became due, and the due time to continue at ('': done). The first call also counts
-- deliveries that were due before.
local at = now()
local max = tonumber(ARGV[2])
local from = ARGV[1]
local due = 0
if from == '' then
  due = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', at))
end
if from == '' or tonumber((string.gsub(from, '^%(', ''))) <= at then -- the start of this page may be due by now
  from = string.format('(%.0f', at)
end
local list = redis.call('ZRANGEBYSCORE', KEYS[1], from, string.format('(%.0f', never), 'WITHSCORES', 'LIMIT', 0, max)
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
if #list < 2 * max then
  return {due + #waiting, ''}
end
-- Everything with the due time of the last delivery is due now, unless that delivery is claimed. Then all with its time
-- are claimed.
from = list[#list]
if tonumber(from) % 1 ~= 0 then
  from = '(' .. from
end
return {due + #waiting, from}

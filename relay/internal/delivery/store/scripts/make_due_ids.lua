-- Make some scheduled deliveries due at once. KEYS: retry, records, arrivals, order, ordermembers. ARGV: IDs.
-- Returns for each: 'changed'; 'running' (claimed) and 'ordering' (waits for another one with its ordering key), which stay
-- unchanged; or 'missing'.
local at = now()
local result = {}
for i, id in ipairs(ARGV) do
  local score = tonumber(redis.call('ZSCORE', KEYS[1], id) or -1)
  if score < 0 then
    result[i] = 'missing'
  elseif score > at and score % 1 ~= 0 then
    result[i] = 'running'
  elseif score >= never then
    result[i] = 'ordering'
  else
    redis.call('ZREM', KEYS[1], id) -- see retry_queue.lua
    redis.call('ZADD', KEYS[1], string.format('%.0f', at), id)
    result[i] = 'changed'
  end
end
return result

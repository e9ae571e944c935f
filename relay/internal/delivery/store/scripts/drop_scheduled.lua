-- Remove some scheduled deliveries. Claimed ones stay unchanged, because their attempt is running, unless the claim has
-- ended.
-- KEYS: retry, records, arrivals, order, ordermembers. ARGV: IDs.
-- Returns for each: 'changed', 'running' or 'missing', and the record ('': none).
local at = now()
local result = {}
for _, id in ipairs(ARGV) do
  local score = tonumber(redis.call('ZSCORE', KEYS[1], id) or -1)
  local outcome, body = 'missing', ''
  if score > at and score % 1 ~= 0 then
    outcome = 'running'
  elseif score >= 0 then
    outcome, body = 'changed', redis.call('HGET', KEYS[2], id) or ''
    remove(id)
  end
  result[#result + 1] = outcome
  result[#result + 1] = body
end
return result

-- End a claim and make its delivery due later, unless the claim was lost. Returns 1 if it was valid.
-- KEYS: retry, records, arrivals, order, ordermembers. ARGV: ID, end of the claim, milliseconds to wait, record ('': unchanged).
if not holds_claim(ARGV[1], ARGV[2]) then
  return 0
end
redis.call('ZREM', KEYS[1], ARGV[1]) -- see retry_queue.lua
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now() + tonumber(ARGV[3])), ARGV[1])
return 1

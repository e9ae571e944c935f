-- Replace or remove a scheduled delivery if it has not changed since it was read.
-- KEYS: retry, records, arrivals, order, ordermembers. ARGV: ID, text that was read, new text ("" removes the delivery).
-- Returns 1, or 0 if it has changed.
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then
  return 0
end
if ARGV[3] == '' then
  remove(ARGV[1])
else
  redis.call('HDEL', KEYS[2], ARGV[1]) -- see retry_queue.lua
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
end
return 1

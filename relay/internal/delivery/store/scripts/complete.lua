-- Remove a delivered delivery, even if its claim was lost, and end the failures of the sink.
-- KEYS: retry, records, arrivals, failing, order, ordermembers. ARGV: ID.
-- Returns 1 if the next delivery with its ordering key became due.
local next_due = remove(ARGV[1])
redis.call('DEL', KEYS[4])
return next_due and 1 or 0

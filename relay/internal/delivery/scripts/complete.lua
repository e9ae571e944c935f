-- Remove what was delivered, whether the claim lasts or not, and forget the failures: what was retried had failed before.
-- KEYS: retry, parked, since, failing, line, lined. ARGV: id. Returns 1 where the next of its line is due now.
local more = leave(ARGV[1])
redis.call('DEL', KEYS[4])
return more and 1 or 0

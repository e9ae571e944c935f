-- Remove what was delivered, whether the claim lasts or not, and forget the failures: what was retried had failed before.
-- KEYS: retry, parked, since, failing. ARGV: id.
leave(ARGV[1])
redis.call('DEL', KEYS[4])
return 1

-- Return the result of an idempotency key, or nil.
-- KEYS: the key.
return known_job(KEYS[1])

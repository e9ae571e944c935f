-- Drop old dead letters. KEYS: deadletters, index. ARGV: maximum number, account share in percent. Returns the number of dropped
-- ones.
return drop_oldest(KEYS[1], KEYS[2], tonumber(ARGV[1]), tonumber(ARGV[2]))

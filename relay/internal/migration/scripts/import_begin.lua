-- Begin an import, which from now on overtakes every earlier one.
-- KEYS: imports, seed. ARGV: digest of what is imported, 1 for the import of a daemon that starts.
-- Returns the number of the import, 0 where a daemon has imported the same last, so that there is nothing to do.
if ARGV[2] == '1' and redis.call('GET', KEYS[2]) == ARGV[1] then
  return 0
end
local number = redis.call('HINCRBY', KEYS[1], 'begun', 1)
redis.call('HSET', KEYS[1], 'digest', ARGV[1])
return number

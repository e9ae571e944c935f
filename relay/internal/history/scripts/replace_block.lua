-- Replace a block by its remaining records, and return 1, or 0 if it does not exist.
-- KEYS: stream. ARGV: entry ID; field; the rest, or '' to only delete the block.
-- A full Redis rejects the first write of a script unless it can only free memory, and no write after it.
local deleted = redis.call('XDEL', KEYS[1], ARGV[1])
if deleted == 1 and ARGV[3] ~= '' then
  redis.call('XADD', KEYS[1], '*', ARGV[2], ARGV[3])
end
return deleted

-- Replace a block by its remaining records. KEYS: stream. ARGV: entry ID; field; the rest, or '' to only delete the block.
-- A full Redis rejects the first write of a script unless it can only free memory, and no write after it.
redis.call('XDEL', KEYS[1], ARGV[1])
if ARGV[3] ~= '' then
  redis.call('XADD', KEYS[1], '*', ARGV[2], ARGV[3])
end

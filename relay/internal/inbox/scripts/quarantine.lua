-- Move rejected inbox entries after the quarantine's position to the quarantine, and advance the position.
-- Returns the position before; the position after; the number of added entries; the number of skipped entries.
-- KEYS: quarantine, position. ARGV: a position to reset, or ''; then for each entry inbox
-- ID, data, reason, idempotency key or '', and replay key.
redis.call('XDEL', KEYS[1], '0-0') -- so the rest works in a full Redis; see retry_queue.lua
local before = redis.call('GET', KEYS[2]) or '0-0'
local position = before
if ARGV[1] ~= '' and ARGV[1] == before then position = '0-0' end
local added, skipped = 0, 0
for a = 2, #ARGV, 5 do
  if less(position, ARGV[a]) then
    redis.call('XADD', KEYS[1], '*', 'data', ARGV[a + 1], 'reason', ARGV[a + 2], 'inbox', ARGV[a], 'key', ARGV[a + 3],
      'replay_key', ARGV[a + 4])
    added = added + 1
    position = ARGV[a]
  else
    skipped = skipped + 1
  end
end
if position ~= before then redis.call('SET', KEYS[2], position) end
return {before, position, added, skipped}

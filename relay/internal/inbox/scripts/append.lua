-- Append inbox entries after the partition's inbox position to its log, and advance the position.
-- Returns the position before; the position after; the number of appended entries; the number of skipped entries;
-- then the inbox IDs of the entries whose idempotency key is known.
-- KEYS: log, position, then for each entry its idempotency key, or the position if it has none.
-- ARGV: a position to reset, or ''; expiry of the keys in milliseconds; then for each entry inbox ID, 1 or 0 for "has
-- a key", ID, topic, hub, account, data.
redis.call('XDEL', KEYS[1], '0-0') -- so the rest works in a full Redis; see retry_queue.lua
local before = redis.call('GET', KEYS[2]) or '0-0'
local position = before
if ARGV[1] ~= '' and ARGV[1] == before then position = '0-0' end
local appended, skipped, repeats = 0, 0, {}
for k = 3, #KEYS do
  local a = 3 + 7 * (k - 3)
  local id, keyed = ARGV[a], ARGV[a + 1] == '1'
  if not less(position, id) then
    skipped = skipped + 1
  else
    if keyed and redis.call('EXISTS', KEYS[k]) == 1 then
      repeats[#repeats + 1] = id
    else
      redis.call('XADD', KEYS[1], '*', 'id', ARGV[a + 2], 'topic', ARGV[a + 3], 'hub', ARGV[a + 4],
        'account', ARGV[a + 5], 'data', ARGV[a + 6], 'publisher', 'inbox')
      appended = appended + 1
      if keyed then
        redis.call('SET', KEYS[k], 'inbox\n' .. ARGV[a + 2], 'PX', ARGV[2])
      end
    end
    position = id
  end
end
-- Always write, so WAIT covers what an earlier run stored.
redis.call('SET', KEYS[2], position)
local result = {before, position, appended, skipped}
for _, id in ipairs(repeats) do result[#result + 1] = id end
return result

-- Remove the newest entries of accounts from a part of a queue, but no entry that a consumer of a group has read.
-- KEYS: queue. ARGV: last ID of the part, maximum number of its entries, number of bytes after which it ends, maximum number of
-- removed entries; then each account and its maximum number of removed entries.
-- Returns the last ID of the part before, or '' after the last part; then ID and values of the fields id, topic, hub and
-- account of each removed entry.
local queue, total = KEYS[1], tonumber(ARGV[4])
local quota = {}
for i = 5, #ARGV, 2 do quota[ARGV[i]] = tonumber(ARGV[i + 1]) end

local read = '0-0'
for _, group in ipairs(redis.pcall('XINFO', 'GROUPS', queue)) do -- an error without a queue
  for i = 1, #group, 2 do
    if group[i] == 'last-delivered-id' and less(read, group[i + 1]) then read = group[i + 1] end
  end
end

local result = {''}
local last = scan('XREVRANGE', queue, ARGV[1], '(' .. read, tonumber(ARGV[2]), tonumber(ARGV[3]), function(entry)
  local values = {}
  for i = 1, #entry[2], 2 do values[entry[2][i]] = entry[2][i + 1] end
  local account = values.account or ''
  if total > 0 and (quota[account] or 0) > 0 then
    redis.call('XDEL', queue, entry[1])
    quota[account], total = quota[account] - 1, total - 1
    for _, value in ipairs({entry[1], values.id or '', values.topic or '', values.hub or '', account}) do
      result[#result + 1] = value
    end
  end
end)
if total > 0 and last then result[1] = '(' .. last end
return result

-- Remove the newest entries of accounts from a page of a queue, but no entry that a consumer of a group has read.
-- KEYS: queue. ARGV: last ID of the page, maximum size of the page, maximum number of removed entries; then each account
-- and its maximum number of removed entries.
-- Returns the last ID of the page before, or '' after the last page; then ID and values of the fields id, topic, hub and
-- account of each removed entry.
local queue, total = KEYS[1], tonumber(ARGV[3])
local quota = {}
for i = 4, #ARGV, 2 do quota[ARGV[i]] = tonumber(ARGV[i + 1]) end

local read = read_state(queue)
local page = redis.call('XREVRANGE', queue, ARGV[1], '(' .. read, 'COUNT', ARGV[2])
local result = {''}
for _, entry in ipairs(page) do
  if total == 0 then return result end
  local values = {}
  for i = 1, #entry[2], 2 do values[entry[2][i]] = entry[2][i + 1] end
  local account = values.account or ''
  if (quota[account] or 0) > 0 then
    redis.call('XDEL', queue, entry[1])
    quota[account], total = quota[account] - 1, total - 1
    for _, value in ipairs({entry[1], values.id or '', values.topic or '', values.hub or '', account}) do
      result[#result + 1] = value
    end
  end
end
if total > 0 and #page == tonumber(ARGV[2]) then result[1] = '(' .. page[#page][1] end
return result

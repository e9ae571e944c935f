-- Returns the highest ID that a consumer of a queue has read, and the number of entries that consumers have read and not
-- acknowledged.
local function read_state(queue)
  local last, pending = '0-0', 0
  for _, group in ipairs(redis.pcall('XINFO', 'GROUPS', queue)) do -- an error without a queue
    for i = 1, #group, 2 do
      if group[i] == 'last-delivered-id' and less(last, group[i + 1]) then last = group[i + 1] end
      if group[i] == 'pending' then pending = pending + group[i + 1] end
    end
  end
  return last, pending
end

-- List dead letters without their notifications, which may be large.
-- KEYS: deadletters. ARGV: XRANGE or XREVRANGE, its first and last entry ID, maximum number, and the number of bytes after
-- which the list ends.
-- Returns 1 if there may be more, and for each: entry ID, ID, topic, hub, account, time, reason, number of attempts, status of
-- the last attempt or 0, ID of the first event, time of the last attempt or of the letter.
local result, bytes, first = {1}, 0, ARGV[2]
local function read_page()
  -- XREVRANGE searches the whole stream if all entries are after the first ID.
  if ARGV[1] == 'XREVRANGE' and #redis.call('XRANGE', KEYS[1], ARGV[3], first, 'COUNT', 1) == 0 then
    return {}
  end
  return redis.call(ARGV[1], KEYS[1], first, ARGV[3], 'COUNT', 10)
end
while #result <= tonumber(ARGV[4]) and bytes < tonumber(ARGV[5]) do
  local page = read_page()
  for _, entry in ipairs(page) do
    local f = {}
    for i = 1, #entry[2], 2 do
      f[entry[2][i]] = entry[2][i + 1]
      bytes = bytes + #entry[2][i + 1]
    end
    local ok, attempts = pcall(cjson.decode, f.attempts or '[]')
    local count, status, at = 0, 0, f.time
    if ok and type(attempts) == 'table' then
      count = #attempts
      local last = attempts[count]
      if type(last) == 'table' then status, at = tonumber(last.status) or 0, last.time or at end
    end
    result[#result + 1] = {
      entry[1], f.id or '', f.topic or '', f.hub or '', f.account or '', f.time or '', f.reason or '', count,
      status, f.event or f.id or '', tostring(at or ''),
    }
    first = '(' .. entry[1]
  end
  if #page < 10 then
    result[1] = 0
    break
  end
end
return result

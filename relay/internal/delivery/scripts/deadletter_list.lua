-- List dead letters without their notifications, which may be large.
-- KEYS: deadletters. ARGV: first and last position as XRANGE takes them, how many.
-- Returns for each: position, id, topic, hub, account, time, reason, number of attempts.
local result = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])) do
  local f = {}
  for i = 1, #entry[2], 2 do
    f[entry[2][i]] = entry[2][i + 1]
  end
  local ok, list = pcall(cjson.decode, f.attempts or '[]')
  local made = 0
  if ok and type(list) == 'table' then
    made = #list
  end
  result[#result + 1] = {
    entry[1], f.id or '', f.topic or '', f.hub or '', f.account or '', f.time or '', f.reason or '', made,
  }
end
return result

-- Take dead letters back into the delay queue, due at once and with their history, but counted anew.
-- KEYS: retry, parked, since, deadletters, index. ARGV: id and position of each.
-- Returns how many were taken back and how many cannot be read. One that is parked already stays parked as it is.
local due = now()
local taken, unreadable = 0, 0
for a = 1, #ARGV, 2 do
  local id, at = ARGV[a], ARGV[a + 1]
  local entry = redis.call('XRANGE', KEYS[4], at, at)[1]
  local f = {}
  if entry then
    for i = 1, #entry[2], 2 do
      f[entry[2][i]] = entry[2][i + 1]
    end
  end
  if entry and not f.notifications and (f.topic or '') == '' then
    unreadable = unreadable + 1
  else
    if entry then
      local list = f.notifications
      if not list then
        list = '[{"id":' .. cjson.encode(id) .. ',"topic":' .. cjson.encode(f.topic) .. ',"hub":' .. cjson.encode(f.hub or '')
          .. ',"account":' .. cjson.encode(f.account or '') .. ',"data":' .. cjson.encode(f.data or '') .. '}]'
      end
      enter(id, '{"made":0,"attempts":' .. (f.attempts or '[]') .. ',"notifications":' .. list .. '}', due, due)
      redis.call('XDEL', KEYS[4], at)
      taken = taken + 1
    end
    if redis.call('HGET', KEYS[5], id) == at then
      redis.call('HDEL', KEYS[5], id)
    end
  end
end
return {taken, unreadable}

-- Take dead letters back into the delay queue, due at once and with their history, but counted anew.
-- KEYS: retry, parked, deadletters, index. ARGV: id and position of each.
-- Returns how many were taken back and how many cannot be read. One that is parked already stays parked as it is.
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
local taken, unreadable = 0, 0
for a = 1, #ARGV, 2 do
  local id, at = ARGV[a], ARGV[a + 1]
  local entry = redis.call('XRANGE', KEYS[3], at, at)[1]
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
      redis.call('HSETNX', KEYS[2], id, '{"made":0,"attempts":' .. (f.attempts or '[]') .. ',"notifications":' .. list .. '}')
      redis.call('ZADD', KEYS[1], 'NX', now, id)
      redis.call('XDEL', KEYS[3], at)
      taken = taken + 1
    end
    if redis.call('HGET', KEYS[4], id) == at then
      redis.call('HDEL', KEYS[4], id)
    end
  end
end
return {taken, unreadable}

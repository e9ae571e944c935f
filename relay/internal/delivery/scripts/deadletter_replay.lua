-- Take dead letters back into the delay queue, due at once and with their history, but counted anew.
-- KEYS: retry, parked, since, deadletters, index, line, lined. ARGV: most to be parked in all (0: no bound), what comes
-- before the hub in the ordering key of what died without one, or '' for no order, then id and position of each. Returns how many were taken back, how many cannot be read, and 1 where there was no more room.
-- One that is parked already stays parked as it is.
local due = now()
local most = tonumber(ARGV[1])
local taken, unreadable = 0, 0
for a = 3, #ARGV, 2 do
  local id, at = ARGV[a], ARGV[a + 1]
  if full(most) and not redis.call('ZSCORE', KEYS[1], id) then
    return {taken, unreadable, 1}
  end
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
      local key = ''
      if ARGV[2] ~= '' then
        key = f.key or string.sub(redis.sha1hex(ARGV[2] .. (f.hub or '')), 1, 24)
      end
      local digest = ''
      if f.digest then
        digest = ',"digest":' .. f.digest
      end
      if f.batch then
        digest = digest .. ',"batch":true'
      end
      enter(id, '{"made":0,"attempts":' .. (f.attempts or '[]') .. ',"notifications":' .. list .. digest .. '}', due, due,
        key)
      redis.call('XDEL', KEYS[4], at)
      taken = taken + 1
    end
    if redis.call('HGET', KEYS[5], id) == at then
      redis.call('HDEL', KEYS[5], id)
    end
  end
end
return {taken, unreadable, 0}

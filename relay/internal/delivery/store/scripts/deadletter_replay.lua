-- Move dead letters to the retry queue, due at once, with their history and a new count of attempts. A delivery that is
-- already scheduled stays unchanged.
-- KEYS: retry, records, arrivals, deadletters, index, order, ordermembers. ARGV: maximum number of scheduled deliveries (0: no
-- limit), prefix of the ordering key of a dead letter without one ('': no order), then ID and entry ID of each.
-- Returns the status of each up to the first that the queue has no room for: changed, missing or unreadable.
local function is_json(text)
  return (pcall(cjson.decode, text))
end

redis.call('ZREM', KEYS[1], '') -- see retry_queue.lua
local due = now()
local max = tonumber(ARGV[1])
local statuses = {}
for a = 3, #ARGV, 2 do
  local id, at = ARGV[a], ARGV[a + 1]
  if is_full(max) and not redis.call('ZSCORE', KEYS[1], id) then
    break
  end
  local status = 'missing'
  local entry = redis.call('XRANGE', KEYS[4], at, at)[1]
  local f = entry and fields_of(entry)
  if entry and (not f.notifications and (f.topic or '') == '' or f.digest and not is_json(f.digest)) then
    status = 'unreadable'
  else
    if entry then
      local list = f.notifications
      if not list then
        list = '[{"id":' .. cjson.encode(f.event or id) .. ',"cursor":' .. cjson.encode(f.cursor or '')
          .. ',"topic":' .. cjson.encode(f.topic) .. ',"hub":' .. cjson.encode(f.hub or '')
          .. ',"account":' .. cjson.encode(f.account or '') .. ',"data":' .. cjson.encode(f.data or '') .. '}]'
      end
      local key = ''
      if ARGV[2] ~= '' then
        key = f.key or string.sub(redis.sha1hex(ARGV[2] .. (f.hub or '')), 1, 24)
      end
      local extra = ''
      if f.digest then
        extra = ',"digest":' .. f.digest
      end
      if f.batch then
        extra = extra .. ',"batch":true'
      end
      if f.stand_in then
        extra = extra .. ',"stand_in":true'
      end
      local attempts = f.attempts or ''
      if not is_json(attempts) then -- damaged: the delivery matters more than its history
        attempts = '[]'
      end
      local body = '{"made":0,"attempts":' .. attempts .. ',"notifications":' .. list .. extra .. '}'
      schedule(id, body, due, due, key)
      status = 'changed'
    end
    delete_letter(KEYS[4], KEYS[5], id, at)
  end
  table.insert(statuses, status)
end
return statuses

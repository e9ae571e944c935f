-- Delete the entries of an account from a page of the quarantine. An entry that is not JSON belongs to the account if it
-- contains its name.
-- KEYS: quarantine. ARGV: first ID, maximum number of entries to check, account.
-- Returns the number of deleted entries, and the ID after the page, or '' at the end.
local function names_account(data)
  local is_json, event = pcall(cjson.decode, data)
  if not is_json or type(event) ~= 'table' then
    return string.find(data, ARGV[3], 1, true) ~= nil
  end
  return type(event.context) == 'table' and event.context.account_id == ARGV[3]
end
local page = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
local deleted = 0
for _, entry in ipairs(page) do
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'data' and names_account(fields[i + 1]) then
      deleted = deleted + redis.call('XDEL', KEYS[1], entry[1])
      break
    end
  end
end
if #page < tonumber(ARGV[2]) then
  return {deleted, ''}
end
return {deleted, '(' .. page[#page][1]}

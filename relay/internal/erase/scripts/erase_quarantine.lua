-- Delete the entries of an account from a page of the quarantine. Data without a readable context belongs to the account
-- if it contains the account's name.
return erase_page(function(name, value)
  if name ~= 'data' then
    return false
  end
  local is_json, event = pcall(cjson.decode, value)
  if is_json and type(event) == 'table' and type(event.context) == 'table' then
    return event.context.account_id == ARGV[3]
  end
  return string.find(value, ARGV[3], 1, true) ~= nil
end)

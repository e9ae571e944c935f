-- Delete the entries of an account from a page of the quarantine. Data without a readable context belongs to the account if it
-- contains the account's name, and so does data whose account_id is no text.
return erase_page(function(name, value)
  if name ~= 'data' then
    return false
  end
  local is_json, event = pcall(cjson.decode, value)
  if is_json and type(event) == 'table' and type(event.context) == 'table' then
    local account = event.context.account_id
    if account == nil or account == cjson.null or type(account) == 'string' then
      return account == ARGV[3]
    end
  end
  return string.find(value, ARGV[3], 1, true) ~= nil
end)

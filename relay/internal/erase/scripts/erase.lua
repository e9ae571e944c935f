-- Delete the entries of an account from a page of a log or a queue, whose entries have a field with the account.
return erase_page(function(name, value)
  return name == 'account' and value == ARGV[3]
end)

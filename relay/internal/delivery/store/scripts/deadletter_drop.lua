-- Delete dead letters. KEYS: deadletters, index. ARGV: ID and entry ID of each. Returns the status of each: changed or missing.
local statuses = {}
for a = 1, #ARGV, 2 do
  local deleted = delete_letter(KEYS[1], KEYS[2], ARGV[a], ARGV[a + 1])
  table.insert(statuses, deleted == 1 and 'changed' or 'missing')
end
return statuses

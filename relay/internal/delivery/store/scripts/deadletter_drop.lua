-- Delete dead letters. KEYS: deadletters, index. ARGV: ID and entry ID of each. Returns the number of deleted ones.
local dropped = 0
for a = 1, #ARGV, 2 do
  dropped = dropped + delete_letter(KEYS[1], KEYS[2], ARGV[a], ARGV[a + 1])
end
return dropped

-- Turn a claimed delivery into a dead letter, unless the claim was lost.
-- KEYS: retry, parked, since, deadletters, index, line, lined. ARGV: id, end of the claim, most dead letters to keep (0: no
-- bound), then fields and values of the dead letter. Returns how many of the oldest had to go, or -1 where nothing was done.
if not held(ARGV[1], ARGV[2]) then
  return -1
end
leave(ARGV[1])
return letter(KEYS[4], KEYS[5], ARGV[1], tonumber(ARGV[3]), {unpack(ARGV, 4)})

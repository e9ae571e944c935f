-- Turn a claimed delivery into a dead letter, unless the claim was lost.
-- KEYS: retry, parked, since, deadletters, index. ARGV: id, end of the claim, then fields and values of the dead letter.
if not held(ARGV[1], ARGV[2]) then
  return 0
end
letter(KEYS[4], KEYS[5], ARGV[1], {unpack(ARGV, 3)})
leave(ARGV[1])
return 1

-- Write the dead letter of a fresh delivery. A repeat after a crash takes the place of the former.
-- KEYS: deadletters, index. ARGV: id, then fields and values of the dead letter.
letter(KEYS[1], KEYS[2], ARGV[1], {unpack(ARGV, 2)})
return 1

-- Write the dead letter of a fresh delivery. A repeat after a crash takes the place of the former.
-- KEYS: deadletters, index. ARGV: id, most to keep (0: no bound), then fields and values of the dead letter.
-- Returns how many of the oldest had to go.
return letter(KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), {unpack(ARGV, 3)})

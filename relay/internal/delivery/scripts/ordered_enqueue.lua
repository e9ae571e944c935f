-- Hold a fresh delivery back behind those of its ordering key. A repeat after a crash changes nothing.
-- KEYS: retry, parked, since, line, lined. ARGV: id, when it came (unix milliseconds), body, ordering key.
-- Returns how many are parked now, or -1 where none of the key is and nothing was done.
if not first(ARGV[4]) then
  return -1
end
enter(ARGV[1], ARGV[3], never, tonumber(ARGV[2]), ARGV[4])
return parked()

-- Park a delivery: a repeat after a crash changes nothing.
-- KEYS: retry, parked, since. ARGV: id, milliseconds to wait, when it came (unix milliseconds), body.
-- Returns how many are parked now.
enter(ARGV[1], ARGV[4], now() + tonumber(ARGV[2]), tonumber(ARGV[3]))
return parked()

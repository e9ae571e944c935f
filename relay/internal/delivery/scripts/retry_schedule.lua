-- Park a delivery: a repeat after a crash changes nothing.
-- KEYS: retry, parked, since, line, lined. ARGV: id, milliseconds to wait, when it came (unix milliseconds), body,
-- ordering key or ''.
-- Returns how many are parked now.
enter(ARGV[1], ARGV[4], now() + tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5])
return parked()

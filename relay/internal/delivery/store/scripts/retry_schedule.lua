-- Schedule a delivery. A repetition changes nothing.
-- KEYS: retry, records, arrivals, order, ordermembers. ARGV: ID, milliseconds to wait, arrival time (unix milliseconds), record,
-- ordering key or ''. Returns the number of scheduled deliveries.
schedule(ARGV[1], ARGV[4], now() + tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5])
return depth()

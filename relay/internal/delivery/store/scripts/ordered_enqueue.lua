-- Schedule a fresh delivery after those with its ordering key. A repetition changes nothing.
-- KEYS: retry, records, arrivals, order, ordermembers. ARGV: ID, arrival time (unix milliseconds), record, ordering key.
-- Returns the number of scheduled deliveries, or -1 if there is none with that key and nothing was done.
if not first_of(ARGV[4]) then
  return -1
end
schedule(ARGV[1], ARGV[3], never, tonumber(ARGV[2]), ARGV[4])
return depth()

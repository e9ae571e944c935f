-- Store a dead letter, which replaces an earlier one of the same delivery. A claimed delivery leaves the retry queue.
-- KEYS: retry, records, arrivals, deadletters, index, order, ordermembers. ARGV: ID of the claim, end of the claim ('': a fresh
-- delivery), maximum number of dead letters (0: no limit), account share in percent, ID and account of the dead letter, then names
-- and values of the fields.
-- Returns the number of dropped dead letters, or -1 if the claim was lost and nothing was done.

-- Nothing is removed first: a full Redis must reject the dead letter of a fresh delivery, because its event also stays in the log.
local max, id = tonumber(ARGV[3]), ARGV[5]
if ARGV[2] ~= '' then
  if not holds_claim(ARGV[1], ARGV[2]) then
    return -1
  end
  remove(ARGV[1])
end
local old = redis.call('HGET', KEYS[5], id)
if old then
  redis.call('XDEL', KEYS[4], (parse_index(old)))
end
redis.call('HSET', KEYS[5], id, redis.call('XADD', KEYS[4], '*', unpack(ARGV, 7)) .. ' ' .. ARGV[6])
if max <= 0 then
  return 0
end
return drop_excess(KEYS[4], KEYS[5], max, tonumber(ARGV[4]))

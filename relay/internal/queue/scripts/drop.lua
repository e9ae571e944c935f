-- Remove one entry. If a consumer of a group has read it, it stays. KEYS: queue. ARGV: group ('': none), ID.
-- Returns 'changed', 'running' or 'missing'.
if #redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2]) == 0 then
  return 'missing'
end
if ARGV[1] ~= '' then
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) -- an error without a group
  if not pending.err and #pending > 0 then
    return 'running'
  end
end
redis.call('XDEL', KEYS[1], ARGV[2])
return 'changed'

-- Replace the containers of a partition with an import, or only count the changes.
-- KEYS: containers, instances, moved, migrating, imported.
-- ARGV: number of the import, 1 to apply or 0 to count, number of servers and their IDs, number of moves that the caller has checked
-- with <container>/<instance> and server of each, number of containers with ID and value of each, then <container>/<instance> and
-- server of each instance.
-- Returns 0 if the import is superseded, and 2 if a job has moved an instance since the check. Otherwise returns 1, the numbers of
-- added, changed and removed containers, the same for instances, the number of cleared moves, and the migrating instances that
-- prevent the import. If there are such instances, the script changes nothing.
local containers, instances, moved, migrating, imported = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local number, apply = tonumber(ARGV[1]), ARGV[2] == '1'
if tonumber(redis.call('GET', imported) or '0') > number then
  return {0}
end

local function read(key)
  local flat, map = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do map[flat[i]] = flat[i + 1] end
  return map
end

local at = 3
local function pairs_of(n)
  local map = {}
  for _ = 1, n do
    map[ARGV[at]] = ARGV[at + 1]
    at = at + 2
  end
  return map
end

local known = {}
for i = 1, tonumber(ARGV[at]) do known[ARGV[at + i]] = true end
at = at + 1 + tonumber(ARGV[at])
local function counted_pairs()
  at = at + 1
  return pairs_of(tonumber(ARGV[at - 1]))
end
local checked = counted_pairs()
local to_containers = counted_pairs()
local to_instances = pairs_of((#ARGV - at + 1) / 2)
local is_containers, is_instances, is_moved, is_migrating =
  read(containers), read(instances), read(moved), read(migrating)

-- A recorded move remains until the file names the same server or the server is removed.
local cleared = {}
for field, server in pairs(is_moved) do
  if not to_instances[field] or to_instances[field] == server or not known[server] then
    if not to_instances[field] and checked[field] ~= server then return {2} end
    cleared[#cleared + 1] = field
    cleared[field] = true
  end
end

local function container_of(field) return string.match(field, '^[^/]*') end
local busy_containers = {}
for field in pairs(is_migrating) do busy_containers[container_of(field)] = true end
local changed_containers = {}
for _, fields in ipairs({is_instances, is_moved}) do
  for field in pairs(fields) do
    local now, later = is_moved[field] or is_instances[field], to_instances[field]
    if is_moved[field] and not cleared[field] then later = is_moved[field] end
    if now ~= later and busy_containers[container_of(field)] then changed_containers[container_of(field)] = true end
  end
end
local blocking = {}
for field in pairs(is_migrating) do
  if changed_containers[container_of(field)] then blocking[#blocking + 1] = field end
end

apply = apply and #blocking == 0
local function replace(key, current, target)
  local added, changed, removed = 0, 0, 0
  for name, value in pairs(target) do
    if not current[name] then
      added = added + 1
    elseif current[name] ~= value then
      changed = changed + 1
    end
    if apply and current[name] ~= value then redis.call('HSET', key, name, value) end
  end
  for name in pairs(current) do
    if not target[name] then
      removed = removed + 1
      if apply then redis.call('HDEL', key, name) end
    end
  end
  return added, changed, removed
end

local ca, cc, cr = replace(containers, is_containers, to_containers)
local ia, ic, ir = replace(instances, is_instances, to_instances)
if apply then
  for _, field in ipairs(cleared) do redis.call('HDEL', moved, field) end
  redis.call('SET', imported, ARGV[1])
end
local reply = {1, ca, cc, cr, ia, ic, ir, #cleared}
for _, field in ipairs(blocking) do reply[#reply + 1] = field end
return reply

-- Make the containers of a partition those of an import, or only tell what that would change.
-- KEYS: containers, instances, moved, migrating, imported.
-- ARGV: the import's number, 1 to change or 0 to tell, the number of servers and their ids, the number of containers and id
-- and value of each, then <container>/<instance> and server of each instance.
-- Returns 0 for an overtaken import. Else 1, how many containers and then how many instances are added, changed and removed,
-- how many places of moved instances are forgotten, and the instances on the move whose container forbids the import: with
-- any of these nothing is changed.
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
local count = tonumber(ARGV[at])
at = at + 1
local to_containers = pairs_of(count)
local to_instances = pairs_of((#ARGV - at + 1) / 2)
local is_containers, is_instances, is_moved, is_migrating =
  read(containers), read(instances), read(moved), read(migrating)

-- Where a job has moved an instance counts, until the file says the same or the server is gone.
local settled = {}
for field, server in pairs(is_moved) do
  if not to_instances[field] or to_instances[field] == server or not known[server] then
    settled[#settled + 1] = field
    settled[field] = true
  end
end

local function container_of(field) return string.match(field, '^[^/]*') end
local forbidding = {}
for field in pairs(is_migrating) do forbidding[container_of(field)] = true end
local forbidden = {}
for _, fields in ipairs({is_instances, is_moved}) do
  for field in pairs(fields) do
    local now, later = is_moved[field] or is_instances[field], to_instances[field]
    if is_moved[field] and not settled[field] then later = is_moved[field] end
    if now ~= later and forbidding[container_of(field)] then forbidden[container_of(field)] = true end
  end
end
local refused = {}
for field in pairs(is_migrating) do
  if forbidden[container_of(field)] then refused[#refused + 1] = field end
end

apply = apply and #refused == 0
local function make(key, is, to)
  local added, changed, removed = 0, 0, 0
  for name, value in pairs(to) do
    if not is[name] then
      added = added + 1
    elseif is[name] ~= value then
      changed = changed + 1
    end
    if apply and is[name] ~= value then redis.call('HSET', key, name, value) end
  end
  for name in pairs(is) do
    if not to[name] then
      removed = removed + 1
      if apply then redis.call('HDEL', key, name) end
    end
  end
  return added, changed, removed
end

local ca, cc, cr = make(containers, is_containers, to_containers)
local ia, ic, ir = make(instances, is_instances, to_instances)
if apply then
  for _, field in ipairs(settled) do redis.call('HDEL', moved, field) end
  redis.call('SET', imported, ARGV[1])
end
local reply = {1, ca, cc, cr, ia, ic, ir, #settled}
for _, field in ipairs(refused) do reply[#reply + 1] = field end
return reply

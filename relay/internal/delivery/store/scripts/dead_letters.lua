-- The dead letters of a sink are entries of a stream. The index contains the entry ID of each by the ID of its delivery, and after
-- a space its account.

-- Number of dead letters from which the account with the most is estimated.
local sample_size = 64

-- Returns the entry ID and the account of a value of the index. Earlier builds stored only the entry ID.
local function parse_index(value)
  return string.match(value or '', '^(%S*) ?(.*)$')
end

-- Deletes a dead letter unless the entry is an old one of the same delivery. Returns the number of deleted entries.
local function delete_letter(letters, index, id, at)
  if parse_index(redis.call('HGET', index, id)) == at then
    redis.call('HDEL', index, id)
  end
  return redis.call('XDEL', letters, at)
end

local function fields_of(entry)
  local f = {}
  for i = 1, #entry[2], 2 do
    f[entry[2][i]] = entry[2][i + 1]
  end
  return f
end

local function is_older(a, b)
  local ams, aseq = string.match(a.at, '(%d+)-(%d+)')
  local bms, bseq = string.match(b.at, '(%d+)-(%d+)')
  if ams ~= bms then
    return tonumber(ams) < tonumber(bms)
  end
  return tonumber(aseq) < tonumber(bseq)
end

-- Returns an account that has more than a percentage of a sample, its dead letters in the sample, the oldest first, and by how many
-- it exceeds its share. Returns nil if no account has more.
local function find_excess(index, share)
  local sample = redis.call('HRANDFIELD', index, sample_size, 'WITHVALUES')
  local of, largest = {}, nil
  for i = 1, #sample, 2 do
    local at, account = parse_index(sample[i + 1])
    if account ~= '' then
      of[account] = of[account] or {}
      table.insert(of[account], {id = sample[i], at = at})
      if not largest or #of[account] > #of[largest] then
        largest = account
      end
    end
  end
  local count = largest and #of[largest] or 0
  local allowed = share * #sample / 2 / 100
  if count <= allowed then
    return nil
  end
  table.sort(of[largest], is_older)
  if count == #sample / 2 then -- an account that is alone has no share
    allowed = 0
  end
  return largest, of[largest], math.ceil(count - allowed)
end

-- Drops up to n dead letters, at most sample_size, and returns their number. Old ones of an account that has more than its share
-- in percent go first, then the oldest ones. With a share of 100, only their age matters.
local function drop_oldest(letters, index, n, share)
  local account, sampled
  n = math.min(n, sample_size)
  if share < 100 then
    local excess
    account, sampled, excess = find_excess(index, share)
    n = math.min(n, excess or n)
  end
  local dropped = 0
  while dropped < n do
    local oldest = redis.call('XRANGE', letters, '-', '+', 'COUNT', 1)[1]
    if not oldest then
      break
    end
    local f = fields_of(oldest)
    if not account or f.account == account then
      delete_letter(letters, index, f.id or '', oldest[1])
      dropped = dropped + 1
    else
      local one = table.remove(sampled, 1)
      if not one then
        break
      end
      dropped = dropped + delete_letter(letters, index, one.id, one.at)
    end
  end
  return dropped
end

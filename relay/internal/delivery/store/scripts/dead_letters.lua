-- The dead letters of a sink are entries of a stream. The index contains the entry ID of each by the ID of its delivery, and after
-- a space its account.

-- Number of dead letters from which the account with the most is estimated.
local sample_size = 256

-- Returns the entry ID and the account of a value of the index.
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

-- Returns an account that has more than its share of the maximum, its dead letters in a sample of all, the oldest first, and by how
-- many it exceeds its share there. Returns nil if no account has more.
local function find_excess(index, share, max, all)
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
  local total, count = #sample / 2, largest and #of[largest] or 0
  local allowed = share * max * total / (100 * all)
  if total == sample_size then -- two standard deviations, because a sample may have more than the rest
    allowed = allowed + 2 * math.sqrt(allowed)
  end
  if count <= allowed then
    return nil
  end
  table.sort(of[largest], is_older)
  if count == total then -- an account that is alone has no share
    allowed = 0
  end
  return largest, of[largest], math.ceil(count - allowed)
end

-- Drops dead letters above the maximum, and returns their number. Old ones of an account that has more than its share of the maximum,
-- in percent, go first, and then the oldest ones. With a share of 100, only their age matters.
local function drop_excess(letters, index, max, share)
  local count = redis.call('XLEN', letters)
  -- A sample takes about as long as ten drops, so up to nine more than the maximum stay. More drops at once could block Redis,
  -- because the maximum may have been much higher before.
  if count - max < math.max(1, math.min(max / 100, 10)) then
    return 0
  end
  local n = math.min(count - max, 10)
  local account, sampled, above
  if share < 100 then
    account, sampled, above = find_excess(index, share, max, count)
  end
  local dropped = 0
  while dropped < n do
    local oldest = redis.call('XRANGE', letters, '-', '+', 'COUNT', 1)[1]
    if not oldest then
      break
    end
    local f = fields_of(oldest)
    local one = account and dropped < above and f.account ~= account and table.remove(sampled, 1)
    if one then
      dropped = dropped + delete_letter(letters, index, one.id, one.at)
    else
      dropped = dropped + delete_letter(letters, index, f.id or '', oldest[1])
    end
  end
  return dropped
end

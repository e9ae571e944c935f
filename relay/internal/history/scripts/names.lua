-- Return the numbers of names, and give numbers to new ones. A name gets 0 if there are too many.
-- KEYS: names. ARGV: maximum number of names; then the names.
local numbers = {}
for i = 2, #ARGV do
  local number = redis.call('HGET', KEYS[1], ARGV[i])
  if not number then
    number = redis.call('HLEN', KEYS[1]) + 1
    if number > tonumber(ARGV[1]) then
      number = 0
    else
      redis.call('HSET', KEYS[1], ARGV[i], number)
    end
  end
  numbers[i - 1] = tonumber(number)
end
return numbers

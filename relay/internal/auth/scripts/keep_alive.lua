-- Makes a stream the only one of a token, and returns the new value of the token. A token without a stream has its grant
-- as JSON. A token with one has ' GENERATION DEADLINE GRANT': the number of the stream, and the time in milliseconds
-- after which no stream may use the token.
-- KEYS[1] the token; ARGV[1] the time, ARGV[2] the TTL, ARGV[3] the deadline of the first stream, in milliseconds
local text = redis.call('GET', KEYS[1])
if not text or text == '-' then
  return text
end
local generation, deadline, grant = string.match(text, '^ (%d+) (%d+) (.*)$')
if not generation then
  generation, deadline, grant = '0', ARGV[3], text
end
local remaining = tonumber(deadline) - tonumber(ARGV[1])
if remaining < 1 then
  return false
end
text = string.format(' %d %s %s', tonumber(generation) + 1, deadline, grant)
redis.call('SET', KEYS[1], text, 'PX', string.format('%d', math.min(remaining, tonumber(ARGV[2]))))
return text

-- Returns the value of a token, marks the token as kept alive, and resets its TTL.
-- KEYS[1] the token; ARGV[1] the TTL in milliseconds
local text = redis.call('GET', KEYS[1])
if not text or text == '-' then
  return text
end
if string.sub(text, 1, 1) == ' ' then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
else
  text = ' ' .. text
  redis.call('SET', KEYS[1], text, 'PX', ARGV[1])
end
return text

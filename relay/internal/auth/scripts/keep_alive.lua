-- Returns a token's text, and from now on the token is held and has its whole time.
-- KEYS[1] the token; ARGV[1] its time in milliseconds
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

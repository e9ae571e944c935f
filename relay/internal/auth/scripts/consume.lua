-- Returns the value of a token and consumes the token. A token that is kept alive is replaced by a marker. Otherwise the
-- nodes that keep it alive would restore it.
-- KEYS[1] the token; ARGV[1] the TTL of the marker in milliseconds
local text = redis.call('GET', KEYS[1])
if not text or text == '-' then
  return text
end
if string.sub(text, 1, 1) == ' ' then
  redis.call('SET', KEYS[1], '-', 'PX', ARGV[1])
else
  redis.call('DEL', KEYS[1])
end
return text

-- Returns a token's text and uses it up. One that was held leaves a mark, or the nodes that hold it would put it back.
-- KEYS[1] the token; ARGV[1] how long the mark stays, in milliseconds
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

-- Resets the TTL of a token if it still belongs to the stream, and returns the value of the token.
-- KEYS[1] the token; ARGV[1] its value for the stream, ARGV[2] the TTL in milliseconds
local text = redis.call('GET', KEYS[1])
if text == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return text

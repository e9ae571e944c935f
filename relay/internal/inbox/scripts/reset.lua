-- Delete an empty inbox, and with it its last ID. KEYS: inbox.
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XLEN', KEYS[1]) == 0 then redis.call('DEL', KEYS[1]) end
return 0

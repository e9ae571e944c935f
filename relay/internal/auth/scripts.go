package auth

import (
	_ "embed" // the scripts

	"github.com/redis/go-redis/v9"
)

// What stands in Redis for a token is its grant as JSON, behind a blank once the token is held, and usedUp in place of one
// that was used up after that. The scripts run on miniredis too, whose Lua is gopher-lua.
const consumedMarker = "-"

var (
	//go:embed scripts/keep_alive.lua
	holdSource string
	//go:embed scripts/consume.lua
	useSource string

	holdScript = redis.NewScript(holdSource)
	useScript  = redis.NewScript(useSource)
)

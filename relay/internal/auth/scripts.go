package auth

import (
	_ "embed" // the scripts

	"github.com/redis/go-redis/v9"
)

// The value of a token in Redis is its grant as JSON. A token that is kept alive has a space before the JSON.
// consumedMarker replaces the value if such a token is consumed. The scripts must also run on miniredis with
// gopher-lua.
const consumedMarker = "-"

var (
	//go:embed scripts/keep_alive.lua
	keepAliveSource string
	//go:embed scripts/consume.lua
	consumeSource string

	keepAliveScript = redis.NewScript(keepAliveSource)
	consumeScript   = redis.NewScript(consumeSource)
)

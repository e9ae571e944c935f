package auth

import (
	_ "embed" // the scripts

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// consumedMarker replaces the value of a token that was consumed while a stream kept it alive. keep_alive.lua describes
// the other values. The scripts must also run on miniredis with gopher-lua.
const consumedMarker = "-"

var (
	//go:embed scripts/keep_alive.lua
	keepAliveSource string
	//go:embed scripts/renew.lua
	renewSource string
	//go:embed scripts/consume.lua
	consumeSource string

	keepAliveScript = redisconn.NewScript(keepAliveSource)
	renewScript     = redisconn.NewScript(renewSource)
	consumeScript   = redisconn.NewScript(consumeSource)
)

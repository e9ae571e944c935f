package backbone

import (
	_ "embed" // the scripts
	"github.com/redis/go-redis/v9"
)

// Every script names all its keys in KEYS and they share a slot; it runs on miniredis too, whose Lua is gopher-lua.
var (
	//go:embed scripts/append.lua
	appendSource string

	appendScript = redis.NewScript(appendSource)
)

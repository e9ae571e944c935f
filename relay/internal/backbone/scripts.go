package backbone

import (
	_ "embed" // the scripts

	"github.com/redis/go-redis/v9"
)

// Every script names all its keys in KEYS, which share a slot, and runs on miniredis too, whose Lua is gopher-lua.
var (
	//go:embed scripts/compare_ids.lua
	lessSource string
	//go:embed scripts/append.lua
	appendSource string
	//go:embed scripts/enqueue.lua
	enqueueSource string
	//go:embed scripts/register_sinks.lua
	serveSource string
	//go:embed scripts/inbox.lua
	inboxSource string
	//go:embed scripts/quarantine.lua
	quarantineSource string
	//go:embed scripts/trim.lua
	trimSource string
	//go:embed scripts/source.lua
	sourceSource string
	//go:embed scripts/lease_take.lua
	leaseTakeSource string
	//go:embed scripts/lease_drop.lua
	leaseDropSource string

	appendScript     = redis.NewScript(appendSource)
	enqueueScript    = redis.NewScript(lessSource + enqueueSource)
	serveScript      = redis.NewScript(lessSource + serveSource)
	inboxScript      = redis.NewScript(lessSource + inboxSource)
	quarantineScript = redis.NewScript(lessSource + quarantineSource)
	trimScript       = redis.NewScript(lessSource + trimSource)
	sourceScript     = redis.NewScript(sourceSource)
	leaseTakeScript  = redis.NewScript(leaseTakeSource)
	leaseDropScript  = redis.NewScript(leaseDropSource)
)

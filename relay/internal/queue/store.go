package queue

import (
	_ "embed" // the scripts

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

var (
	//go:embed scripts/enqueue.lua
	enqueueSource string
	//go:embed scripts/drop_oldest.lua
	dropOldestSource string
	//go:embed scripts/register_sinks.lua
	registerSource string
	//go:embed scripts/detach_sinks.lua
	detachSource string
	//go:embed scripts/queued.lua
	queuedSource string
	//go:embed scripts/drop.lua
	dropSource string
	//go:embed scripts/drop_newest.lua
	dropNewestSource string
	//go:embed scripts/queue_stats.lua
	statsSource string
	//go:embed scripts/count_accounts.lua
	countAccountsSource string

	enqueueScript  = redisconn.NewScript(streamid.CompareLua + enqueueSource)
	registerScript = redisconn.NewScript(streamid.CompareLua + registerSource)
	detachScript   = redisconn.NewScript(streamid.CompareLua + detachSource)
	queuedScript   = redisconn.NewScript(queuedSource)
	dropScript     = redisconn.NewScript(dropSource)

	dropOldestScript    = redisconn.NewScript(dropOldestSource)
	dropNewestScript    = redisconn.NewScript(streamid.CompareLua + redisconn.ScanLua + dropNewestSource)
	countAccountsScript = redisconn.NewScript(redisconn.ScanLua + countAccountsSource)
)

// Store contains the queues of all sinks. It may be used concurrently.
type Store struct {
	conn *redisconn.Conn
	keys keyspace.Space
}

// NewStore returns the queues.
func NewStore(c *redisconn.Conn, keys keyspace.Space) *Store { return &Store{conn: c, keys: keys} }

// Key is the stream of a sink's undelivered entries of one partition.
func Key(k keyspace.Space, sink string, partition int) string {
	return k.InPartition("queue:"+sink, partition)
}

// Keys returns the streams of a sink in all partitions.
func Keys(k keyspace.Space, sink string) []string {
	keys := make([]string, k.Partitions())
	for p := range keys {
		keys[p] = Key(k, sink, p)
	}
	return keys
}

// SinkPositionsKey is the hash of the position up to which each sink has been served from a partition's log.
func SinkPositionsKey(k keyspace.Space, partition int) string {
	return k.InPartition("sinks", partition)
}

package daemon

import (
	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
	"github.com/hubrelay/hubrelay/relay/internal/storage"
)

// stores are the stores on one Redis connection.
type stores struct {
	conn    *redisconn.Conn
	keys    keyspace.Space
	log     *eventlog.Log
	inbox   *inbox.Store
	queues  *queue.Store
	sources *sourcestore.Store
	leases  *lease.Manager
	monitor *storage.Monitor
}

func newStores(c *redisconn.Conn) *stores {
	keys := c.Keys()
	return &stores{
		conn: c, keys: keys, log: eventlog.New(c, keys), inbox: inbox.NewStore(c, keys),
		queues:  queue.NewStore(c, keys),
		sources: sourcestore.New(c, keys), leases: lease.NewManager(c, keys),
	}
}

// replayLog combines the log with the queues for package replay.
type replayLog struct {
	*eventlog.Log
	*queue.Store
}

var _ replay.Log = replayLog{}

// IsAfter reports whether a cursor is after a position.
func (replayLog) IsAfter(cursor, position string) bool { return streamid.Compare(cursor, position) > 0 }

// Package eventlog stores accepted notifications in the log, a stream in Redis for each partition. It appends, reads,
// follows and trims the log.
//
// The positions of its readers belong to the readers. The queues of the sinks are in package queue.
package eventlog

import (
	_ "embed" // the scripts

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

var (
	//go:embed scripts/append.lua
	appendSource string
	//go:embed scripts/trim.lua
	trimSource string

	appendScript = redisconn.NewScript(appendSource)
	trimScript   = redisconn.NewScript(streamid.CompareLua + trimSource)
)

// Log is the log of all partitions. It may be used concurrently.
type Log struct {
	conn         *redisconn.Conn
	keys         keyspace.Space
	groupCommits []*groupCommit // by partition
	searched     ReadSize
	tailLags     lags // of the tail readers
	dispatchLags lags // of the dispatchers
	accounts     recentAccounts
	keyBudget    *keyBudget
}

// Options are the settings of a [Log].
type Options struct {
	// MaxMemory returns the memory limit of Redis in bytes, or 0 without a limit. The memory of idempotency keys is a part of it.
	// It is called concurrently. Nil means no limit.
	MaxMemory func() int64
}

// New returns the log.
func New(c *redisconn.Conn, keys keyspace.Space, o Options) *Log {
	l := &Log{
		conn: c, keys: keys, tailLags: make(lags, keys.Partitions()), dispatchLags: make(lags, keys.Partitions()),
		groupCommits: make([]*groupCommit, keys.Partitions()), keyBudget: newKeyBudget(o.MaxMemory),
	}
	shared := &groupCommit{flush: l.flushBatch}
	for p := range l.groupCommits {
		l.groupCommits[p] = shared
		if c.IsCluster() { // a server that does not respond must not delay writes to others
			l.groupCommits[p] = &groupCommit{flush: l.flushBatch}
		}
	}
	return l
}

// ToNotifications decodes entries of a log, or of a queue, which have the same format.
func ToNotifications(entries []resp.Entry) []relay.Notification {
	list := make([]relay.Notification, len(entries))
	for i, e := range entries {
		list[i] = toNotification(e)
	}
	return list
}

// toNotification decodes a log entry. The relay writes the known fields first, but other programs may not.
func toNotification(e resp.Entry) relay.Notification {
	var arena resp.StringArena
	arena.Grow(e.Body)
	n := relay.Notification{Cursor: e.ID}
	resp.EachField(e.Body, func(key, value []byte) bool {
		switch string(key) {
		case resp.FieldID:
			n.ID = arena.Copy(value)
		case "topic":
			n.Topic = arena.Copy(value)
		case "hub":
			n.Hub = arena.Copy(value)
		case "account":
			n.Account = arena.Copy(value)
		case resp.FieldData:
			n.Data = value
		}
		return true
	})
	return n
}

// Key is the stream of a partition's notifications, with the fields id, topic, hub, account, data and
// publisher.
func Key(k keyspace.Space, partition int) string { return k.InPartition("log", partition) }

// DispatchPositionKey is the hash of the position up to which a partition's log has been dispatched. Package queue
// writes it, and [Log.Trim] keeps what follows.
func DispatchPositionKey(k keyspace.Space, partition int) string {
	return k.InPartition("dispatched", partition)
}

// IdempotencyKey is the record of one idempotency key of the inbox or of a migration, which is given as a hash.
func IdempotencyKey(k keyspace.Space, partition int, hash string) string {
	return k.InPartition("idempotency", partition) + ":" + hash
}

// ClientIdempotencyKeys are the hashes of the newer and the older idempotency keys of a client that publishes. The client
// is given as a hash.
func ClientIdempotencyKeys(k keyspace.Space, partition int, client string) (newer, older string) {
	return k.InPartition("idempotency:newer", partition) + ":" + client,
		k.InPartition("idempotency:older", partition) + ":" + client
}

// Package sourcestore stores what a source read from its upstream, together with the source's position, exactly once.
//
// Reading the upstream belongs to package source.
package sourcestore

import (
	"context"
	_ "embed" // the script
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

var (
	//go:embed scripts/store.lua
	storeSource string

	storeScript = redisconn.NewScript(storeSource)
)

// ErrTakenOver means that another process reads the source now. Nothing was stored. Open the source again.
var ErrTakenOver = errors.New("another process has taken the source over")

// RejectedMessage is an invalid message of a source.
type RejectedMessage struct {
	Data []byte
	// Reason is a sentence for an operator.
	Reason string
}

// Batch contains consecutive messages of a source.
type Batch struct {
	// Notifications may belong to any hubs. Notifications of the same hub keep their order. A [relay.TopicResync] is
	// for the clients of its hub. Without a hub it is for all clients and goes to all partitions.
	Notifications []relay.Notification
	// Rejected goes to the quarantine.
	Rejected []RejectedMessage
	// Cursor is the cursor of the upstream after the batch, or "" if unknown.
	Cursor string
	// ClearsCursor removes the stored cursor, because the upstream no longer sends cursors. Cursor is "".
	ClearsCursor bool
	// Returned is the number of notifications that were left out because they came from this relay. Gaps is the number of
	// times that notifications may be missing.
	Returned, Gaps int
}

// Stored returns the number of valid notifications from the upstream.
func (b *Batch) Stored() int {
	n := 0
	for i := range b.Notifications {
		if b.Notifications[i].Topic != relay.TopicResync {
			n++
		}
	}
	return n
}

// Stats are the statistics of a source over all nodes and restarts.
type Stats struct {
	// Cursor is the cursor after the last stored notification. It is "" at first.
	Cursor string
	// HasPosition is false if nothing was ever stored for the source, not even a position.
	HasPosition                         bool
	Stored, Quarantined, Returned, Gaps int64
	// LastStoredAt is the time of the last stored notification, by the clock of its node. It is zero at first.
	LastStoredAt time.Time
}

// Store contains the positions and statistics of all sources. It may be used concurrently.
type Store struct {
	conn    *redisconn.Conn
	keys    keyspace.Space
	trimmer *redisconn.StreamTrimmer
}

// New returns the store.
func New(c *redisconn.Conn, keys keyspace.Space) *Store {
	return &Store{conn: c, keys: keys, trimmer: inbox.NewQuarantineTrimmer(c, keys)}
}

// sourceID identifies a source. A position belongs to a name and a hub, which is "" for an account stream.
type sourceID struct{ name, hub string }

// positionKey is in the slot of the hub, so one script can append the hub's notifications and advance the position.
func (id sourceID) positionKey(k keyspace.Space) string {
	if id.hub == "" {
		return PositionKey(k, id.name, 0)
	}
	return PositionKey(k, id.name, k.Partition(id.hub))
}

// Open returns the position of a source with a name and hub, which is "" for an account stream, and its statistics.
// It first completes what another process began to store.
func (s *Store) Open(ctx context.Context, name, hub string) (*Position, Stats, error) {
	p := &Position{s: s, id: sourceID{name, hub}, token: newToken()}
	fields, err := s.conn.Commands().HGetAll(ctx, p.id.positionKey(s.keys)).Result()
	if err != nil {
		return nil, Stats{}, redisconn.WrapError("read the position of a source", err)
	}
	p.seq = fields["number"]
	if err := p.finishJournal(ctx, []byte(fields["journal"])); err != nil {
		return nil, Stats{}, err
	}
	return p, decodeStats(fields, hub), nil
}

// Stats returns the statistics of a source.
func (s *Store) Stats(ctx context.Context, name, hub string) (Stats, error) {
	fields, err := s.conn.Commands().HGetAll(ctx, sourceID{name, hub}.positionKey(s.keys)).Result()
	if err != nil {
		return Stats{}, redisconn.WrapError("read the statistics of a source", err)
	}
	return decodeStats(fields, hub), nil
}

func decodeStats(fields map[string]string, hub string) Stats {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(fields[name], 10, 64)
		return n
	}
	stats := Stats{
		Stored: number("stored"), Quarantined: number("quarantined"),
		Returned: number("returned"), Gaps: number("gaps"),
	}
	if ms := number("last"); ms > 0 {
		stats.LastStoredAt = time.UnixMilli(ms)
	}
	if fields["number"] != "" && fields["hub"] == hub {
		stats.HasPosition, stats.Cursor = true, fields["cursor"]
	}
	return stats
}

// SetStatus stores the status of a source for ttl, so all nodes can show it.
func (s *Store) SetStatus(ctx context.Context, name string, status []byte, ttl time.Duration) error {
	err := s.conn.Commands().Set(ctx, StatusKey(s.keys, name), status, ttl).Err()
	return redisconn.WrapError("store the status of a source", err)
}

// Status returns the stored status of a source, or nil if it has expired.
func (s *Store) Status(ctx context.Context, name string) ([]byte, error) {
	status, err := s.conn.Commands().Get(ctx, StatusKey(s.keys, name)).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return status, redisconn.WrapError("read the status of a source", err)
}

// PositionKey is the hash of a source's position and statistics, in the slot of a partition.
func PositionKey(k keyspace.Space, name string, partition int) string {
	return k.InPartition("source:"+name, partition)
}

// StepKey is the hash of the last journal step in a partition whose slot differs from the position's.
func StepKey(k keyspace.Space, name string, partition int) string {
	return k.InPartition("source:taken:"+name, partition)
}

// QuarantineStepKey is the hash of the last journal step in the quarantine.
func QuarantineStepKey(k keyspace.Space, name string) string {
	return k.InGroup("quarantine", ":source:"+name)
}

// StatusKey stores the status that the node which reads a source reports.
func StatusKey(k keyspace.Space, name string) string { return k.Global("source:status:" + name) }

package daemon

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/auth/forward"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/source"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
	"github.com/hubrelay/hubrelay/relay/internal/storage"
)

// stores are the stores on one Redis connection.
type stores struct {
	conn       *redisconn.Conn
	keys       keyspace.Space
	log        *eventlog.Log
	inbox      *inbox.Store
	queues     *queue.Store
	deliveries *store.Store
	sources    *sourcestore.Store
	leases     *lease.Manager
	tokens     *auth.TokenStore
	changes    *forward.ChangeStore // of credentials
	audit      *audit.Store
	history    *history.Store
	monitor    *storage.Monitor
}

// heldTokensDivisor is the part of the memory of Redis, as a divisor, that owners share for the tokens of event streams of a node.
const heldTokensDivisor = 32

func (d *Daemon) newStores(c *redisconn.Conn) *stores {
	keys := c.Keys()
	monitor := storage.NewMonitor(storage.Options{
		Read: d.memoryReader(c), Limit: float64(d.cfg.Redis.FullAt) / 100, Log: d.log.With("component", "storage"),
		Observer: d.metrics,
	})
	return &stores{
		conn: c, keys: keys, inbox: inbox.NewStore(c, keys),
		log:    eventlog.New(c, keys, eventlog.Options{MaxMemory: monitor.MaxMemory}),
		queues: queue.NewStore(c, keys), deliveries: store.NewReplicated(c, keys),
		sources: sourcestore.New(c, keys), leases: lease.NewManager(c, keys), audit: audit.NewStore(c, d.cfg.Audit.MaxLen),
		tokens: auth.NewTokenStore(auth.TokenOptions{
			Client: c.Commands(), Key: keys.Token, Changes: keys.TokenChanges(),
			TTL: d.cfg.Auth.TokenTTL, StreamTTL: d.cfg.Auth.StreamTTL,
			MaxHeldBytes: func() int64 { return monitor.MaxMemory() / heldTokensDivisor },
		}),
		changes: forward.NewChangeStore(c.Commands(), keys, d.log.With("component", "forward auth")),
		history: history.NewStore(c, keys),
		monitor: monitor,
	}
}

// memoryReader returns the measurement of Redis. The server of memory: has no limit and cannot be measured.
func (d *Daemon) memoryReader(c *redisconn.Conn) func(context.Context) (redisconn.Memory, error) {
	if d.cfg.Redis.URL == memoryURL {
		return func(context.Context) (redisconn.Memory, error) { return redisconn.Memory{}, nil }
	}
	return c.Memory
}

// checkReady is the readiness check.
func (s *stores) checkReady(ctx context.Context) error {
	if err := s.monitor.Check(); err != nil {
		return err
	}
	return s.conn.Ready(ctx)
}

// newRoomError makes an error of the storage monitor temporary, so the inbox and the sources wait and try again.
func newRoomError(err error) error { return redisconn.NewFullError("store events", err) }

// guardedInbox is the inbox, which shares the room in the storage with publishers. A large inbox is read although the storage is
// full, because it could fill the storage for good otherwise. Its entries take room already, and the log is trimmed.
type guardedInbox struct {
	*inbox.Store
	stores *stores
}

const (
	inboxPublisher = "inbox"
	// largeInboxDivisor is the part of the memory of Redis above which the inbox is large.
	largeInboxDivisor = 64
)

func (i guardedInbox) isLarge(ctx context.Context) bool {
	isLarge, err := i.IsLarge(ctx, i.stores.monitor.MaxMemory()/largeInboxDivisor)
	return err == nil && isLarge
}

func (i guardedInbox) Read(
	ctx context.Context, after string, count int, block time.Duration,
) ([]inbox.Entry, error) {
	if err := i.stores.monitor.CheckPublisher(inboxPublisher); err != nil && !i.isLarge(ctx) {
		return nil, newRoomError(err)
	}
	return i.Store.Read(ctx, after, count, block)
}

func (i guardedInbox) Append(ctx context.Context, partition int, entries []inbox.Notification) (inbox.Result, error) {
	size := int64(0)
	for _, e := range entries {
		size += ingest.StoredSize(e.Notification)
	}
	if err := i.stores.monitor.TakeRoom(inboxPublisher, size); err != nil && !i.isLarge(ctx) {
		return inbox.Result{}, newRoomError(err)
	}
	return i.Store.Append(ctx, partition, entries)
}

// guardedSources are the sources, which share the room in the storage with publishers.
type guardedSources struct {
	*sourcestore.Store
	stores *stores
}

var _ source.Store = guardedSources{}

func (s guardedSources) Open(ctx context.Context, name, hub string) (source.Position, sourcestore.Stats, error) {
	p, stats, err := s.Store.Open(ctx, name, hub)
	if err != nil {
		return nil, stats, err
	}
	return guardedPosition{p, s.stores, "source " + name}, stats, nil
}

type guardedPosition struct {
	*sourcestore.Position
	stores    *stores
	publisher string
}

func (p guardedPosition) Store(ctx context.Context, b sourcestore.Batch) error {
	size := ingest.StoredSize(b.Notifications...)
	for _, r := range b.Rejected {
		size += int64(len(r.Data))
	}
	if err := p.stores.monitor.TakeRoom(p.publisher, size); err != nil {
		return newRoomError(err)
	}
	return p.Position.Store(ctx, b)
}

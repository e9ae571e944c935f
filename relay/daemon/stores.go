package daemon

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
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
	audit      *audit.Store
	history    *history.Store
	monitor    *storage.Monitor
}

func (d *Daemon) newStores(c *redisconn.Conn) *stores {
	keys := c.Keys()
	return &stores{
		conn: c, keys: keys, log: eventlog.New(c, keys), inbox: inbox.NewStore(c, keys),
		queues: queue.NewStore(c, keys), deliveries: store.New(c.Commands(), keys),
		sources: sourcestore.New(c, keys), leases: lease.NewManager(c, keys), audit: audit.NewStore(c, d.cfg.Audit.MaxLen),
		tokens: auth.NewTokenStore(auth.TokenOptions{
			Client: c.Commands(), Key: keys.Token, Changes: keys.TokenChanges(),
			TTL: d.cfg.Auth.TokenTTL, StreamTTL: d.cfg.Auth.StreamTTL,
		}),
		history: history.NewStore(c, keys),
		monitor: storage.NewMonitor(storage.Options{
			Read: d.memoryReader(c), Limit: float64(d.cfg.Redis.FullAt) / 100, Log: d.log.With("component", "storage"),
			Observer: d.metrics,
		}),
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

// checkRoom returns a temporary error while the storage is full, so the inbox and the sources wait.
func (s *stores) checkRoom() error {
	if err := s.monitor.Check(); err != nil {
		return redisconn.NewFullError("store events", err)
	}
	return nil
}

// guardedInbox reads the inbox while there is room.
type guardedInbox struct {
	*inbox.Store
	stores *stores
}

func (i guardedInbox) Read(
	ctx context.Context, after string, count int, block time.Duration,
) ([]inbox.Entry, error) {
	if err := i.stores.checkRoom(); err != nil {
		return nil, err
	}
	return i.Store.Read(ctx, after, count, block)
}

// guardedSources stores notifications of sources while there is room.
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
	return guardedPosition{p, s.stores}, stats, nil
}

type guardedPosition struct {
	*sourcestore.Position
	stores *stores
}

func (p guardedPosition) Store(ctx context.Context, b sourcestore.Batch) error {
	if err := p.stores.checkRoom(); err != nil {
		return err
	}
	return p.Position.Store(ctx, b)
}

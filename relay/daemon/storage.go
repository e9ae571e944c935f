package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/source"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
	"github.com/hubrelay/hubrelay/relay/internal/storage"
)

// startStorageMonitor starts to watch the memory of Redis.
func (a *Daemon) startStorageMonitor(ctx context.Context, p *components, s *stores) {
	s.monitor = storage.NewMonitor(storage.Options{
		Read: s.conn.Memory, Limit: float64(a.cfg.Redis.FullAt) / 100, Log: a.log.With("component", "storage"),
		Observer: a.metrics,
	})
	p.startComponent(ctx, "storage monitor", s.monitor.Run)
}

// ready is the readiness check.
func (s *stores) ready(ctx context.Context) error {
	if err := s.monitor.Check(); err != nil {
		return err
	}
	return s.conn.Ready(ctx)
}

// checkRoom returns a temporary error while the storage is full, so that the inbox and the sources wait.
func (s *stores) checkRoom() error {
	if err := s.monitor.Check(); err != nil {
		return fmt.Errorf("%w: %w", redisconn.ErrUnavailable, err)
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

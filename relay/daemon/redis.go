package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hubrelay/hubrelay/internal/embeddedredis"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const memoryURL = "memory:"

var errNotStarted = errors.New("the daemon is starting")

// openStores connects to the configured Redis, or starts an embedded one first. It returns when Redis responds.
func (a *Daemon) openStores(ctx context.Context, p *components) (*stores, error) {
	cfg := a.cfg.Redis
	o := redisconn.Options{
		URL: cfg.URL, Prefix: cfg.Prefix, Partitions: cfg.Partitions, MinReplicas: cfg.MinReplicas,
		Log: a.log.With("component", "redisconn", "redis_addr", cfg.Address()),
	}
	switch cfg.URL {
	case "":
		server, err := embeddedredis.Start(ctx, embeddedredis.Options{
			DataDir: cfg.DataDir, MaxMemory: int64(cfg.MaxMemory), Log: a.log.With("component", "redis-server"),
			Restarted: a.metrics.RedisRestarted,
		})
		if err != nil {
			return nil, err
		}
		p.startComponent(ctx, "redis-server", func(ctx context.Context) error {
			err := server.Run(ctx)
			closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopMargin)
			defer cancel()
			return errors.Join(err, server.Close(closeCtx))
		})
		o.URL, o.SingleProcess = server.URL(), true
	case memoryURL:
		server, err := embeddedredis.Memory(ctx)
		if err != nil {
			return nil, err
		}
		p.startComponent(ctx, "memory", func(ctx context.Context) error {
			<-ctx.Done()
			server.Close()
			return nil
		})
		o.URL, o.SingleProcess, o.Dialer = "", true, server.Dialer
	}
	c, err := redisconn.Open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	p.startComponent(ctx, "redis connections", func(ctx context.Context) error {
		<-ctx.Done()
		c.Close()
		return nil
	})
	s := newStores(c)
	a.startStorageMonitor(ctx, p, s)
	return s, nil
}

// readyCheck is the check of /readyz. It is set when all required components have started.
type readyCheck struct {
	fn atomic.Pointer[func(context.Context) error]
}

func (r *readyCheck) set(check func(context.Context) error) { r.fn.Store(&check) }

func (r *readyCheck) check(ctx context.Context) error {
	check := r.fn.Load()
	if check == nil {
		return errNotStarted
	}
	return (*check)(ctx)
}

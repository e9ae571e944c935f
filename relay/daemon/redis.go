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

// openStores connects to the configured Redis, or starts an embedded server first. It returns when Redis answers.
func (a *App) openStores(ctx context.Context, p *components) (*stores, error) {
	cfg := a.cfg.Redis
	o := redisconn.Options{
		URL: cfg.URL, Prefix: cfg.Prefix, Partitions: cfg.Partitions, MinReplicas: cfg.MinReplicas,
		Log: a.log.With("room", "redisconn", "redis", cfg.Address()),
	}
	switch cfg.URL {
	case "":
		server, err := embeddedredis.Start(ctx, embeddedredis.Options{
			DataDir: cfg.DataDir, Log: a.log.With("room", "redis"), Restarted: a.metrics.RedisRestarted,
		})
		if err != nil {
			return nil, err
		}
		p.startComponent(ctx, "redis-server", func(ctx context.Context) error {
			err := server.Run(ctx)
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopMargin)
			defer cancel()
			return errors.Join(err, server.Close(closing))
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
	return newStores(c), nil
}

// readyCheck is what /readyz asks; it is set when the parts that it stands for have started.
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

package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/hubrelay/hubrelay/internal/embeddedredis"
	"github.com/hubrelay/hubrelay/relay/internal/lifecycle"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const memoryURL = "memory:"

// connectRedis connects to the configured Redis, or starts an embedded one first. It returns when Redis responds.
func (d *Daemon) connectRedis(ctx context.Context, group *lifecycle.Group) (*redisconn.Conn, error) {
	cfg := d.cfg.Redis
	o := redisconn.Options{
		URL: cfg.URL, Prefix: cfg.Prefix, Partitions: cfg.Partitions, MinReplicas: cfg.MinReplicas,
		Log: d.log.With("component", "redisconn", "redis_addr", cfg.Address()),
	}
	switch cfg.URL {
	case "":
		server, err := embeddedredis.Start(ctx, embeddedredis.Options{
			DataDir: cfg.DataDir, MaxMemory: int64(cfg.MaxMemory), Log: d.log.With("component", "redis-server"),
			Restarted: d.metrics.RedisRestarted,
		})
		if err != nil {
			return nil, err
		}
		group.Start(ctx, "redis-server", func(ctx context.Context) error {
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
		group.Start(ctx, "memory", func(ctx context.Context) error {
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
	group.Start(ctx, "redis connections", func(ctx context.Context) error {
		<-ctx.Done()
		c.Close()
		return nil
	})
	return c, nil
}

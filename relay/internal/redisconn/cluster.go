package redisconn

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// NodeFor returns the client of the server that has the slot of key.
func NodeFor(ctx context.Context, c redis.UniversalClient, key string) (*redis.Client, error) {
	switch c := c.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	}
	return nil, fmt.Errorf("find the server of a key: clients of type %T are not supported", c)
}

// ReloadSlots makes the client of a cluster ask again which server has which slot. Other clients ignore it.
func ReloadSlots(ctx context.Context, client redis.UniversalClient) {
	if c, ok := client.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// slotReloadHook reloads the slots after a command that failed. The client of a cluster does that itself if a server
// redirects it. If a server is gone, it would ask that server for another minute.
type slotReloadHook struct{ client redis.UniversalClient }

// withSlotReload adds the hook to the client of a cluster.
func withSlotReload(client redis.UniversalClient) redis.UniversalClient {
	if _, ok := client.(*redis.ClusterClient); ok {
		client.AddHook(slotReloadHook{client})
	}
	return client
}

func (h slotReloadHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h slotReloadHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return h.onError(ctx, next(ctx, cmd)) }
}

func (h slotReloadHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return h.onError(ctx, next(ctx, cmds)) }
}

func (h slotReloadHook) onError(ctx context.Context, err error) error {
	if err != nil && IsUnavailable(err) && ctx.Err() == nil {
		ReloadSlots(ctx, h.client)
	}
	return err
}

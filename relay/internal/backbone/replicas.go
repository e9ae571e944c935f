package backbone

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// replicaWaitTimeout bounds the wait for replicas. It is well below the time that a reply may take.
const replicaWaitTimeout = time.Second

// commandRunner is a client or one connection of it.
type commandRunner interface {
	redis.Cmdable
	Process(ctx context.Context, cmd redis.Cmder) error
}

// withReplication runs a write to key's slot and then, where [Options.MinReplicas] asks for it, waits on the same connection
// until so many replicas have it: Redis counts those that have got what this connection wrote. So write must write
// something, even where it repeats what was stored before.
func (b *Store) withReplication(ctx context.Context, key string, write func(commandRunner) error) error {
	if b.minReplicas == 0 {
		return write(b.client)
	}
	node, err := nodeOf(ctx, b.client, key)
	if err != nil {
		return err
	}
	conn := node.Conn()
	defer func() { _ = conn.Close() }()
	err = write(conn)
	if err == nil {
		var n int64
		if n, err = conn.Wait(ctx, b.minReplicas, replicaWaitTimeout).Result(); err == nil && n < int64(b.minReplicas) {
			return newUnavailableError("store", fmt.Errorf("%w: %d of %d within %s", ErrTooFewReplicas, n, b.minReplicas, replicaWaitTimeout))
		}
	}
	if err != nil {
		reloadSlots(ctx, b.client)
	}
	return err
}

// reloadSlots lets a cluster's client look anew who holds which slot.
func reloadSlots(ctx context.Context, client redis.UniversalClient) {
	if c, ok := client.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// slotReloadHook looks anew after every command that failed. A cluster's client does that where a server names another one for
// a slot, but not where a server has gone, and would go on asking that for a minute.
type slotReloadHook struct{ client redis.UniversalClient }

// withSlotReload makes client a rerouting one.
func withSlotReload(client redis.UniversalClient) redis.UniversalClient {
	if _, ok := client.(*redis.ClusterClient); ok {
		client.AddHook(slotReloadHook{client})
	}
	return client
}

func (r slotReloadHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r slotReloadHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return r.onError(ctx, next(ctx, cmd)) }
}

func (r slotReloadHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return r.onError(ctx, next(ctx, cmds)) }
}

func (r slotReloadHook) onError(ctx context.Context, err error) error {
	if err != nil && isUnavailable(err) && ctx.Err() == nil {
		reloadSlots(ctx, r.client)
	}
	return err
}

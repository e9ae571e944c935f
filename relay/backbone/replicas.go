package backbone

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// replicaTime bounds the wait for replicas. It is well below the time that a reply may take.
const replicaTime = time.Second

// writer is a client or one connection of it.
type writer interface {
	redis.Cmdable
	Process(ctx context.Context, cmd redis.Cmder) error
}

// replicated runs a write to key's slot and then, where [Options.MinReplicas] asks for it, waits on the same connection
// until so many replicas have it: Redis counts those that have got what this connection wrote. So write must write
// something, even where it repeats what was stored before.
func (b *Backbone) replicated(ctx context.Context, key string, write func(writer) error) error {
	if b.minReplicas == 0 {
		return write(b.commands)
	}
	node, err := nodeOf(ctx, b.commands, key)
	if err != nil {
		return err
	}
	conn := node.Conn()
	defer func() { _ = conn.Close() }()
	err = write(conn)
	if err == nil {
		var n int64
		if n, err = conn.Wait(ctx, b.minReplicas, replicaTime).Result(); err == nil && n < int64(b.minReplicas) {
			return unavailable("store", fmt.Errorf("%w: %d of %d within %s", ErrTooFewReplicas, n, b.minReplicas, replicaTime))
		}
	}
	if err != nil {
		reroute(ctx, b.commands)
	}
	return err
}

// reroute lets a cluster's client look anew who holds which slot.
func reroute(ctx context.Context, client redis.UniversalClient) {
	if c, ok := client.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// rerouting looks anew after every command that failed. A cluster's client does that where a server names another one for
// a slot, but not where a server has gone, and would go on asking that for a minute.
type rerouting struct{ client redis.UniversalClient }

// rerouted makes client a rerouting one.
func rerouted(client redis.UniversalClient) redis.UniversalClient {
	if _, ok := client.(*redis.ClusterClient); ok {
		client.AddHook(rerouting{client})
	}
	return client
}

func (r rerouting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r rerouting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return r.after(ctx, next(ctx, cmd)) }
}

func (r rerouting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return r.after(ctx, next(ctx, cmds)) }
}

func (r rerouting) after(ctx context.Context, err error) error {
	if err != nil && isUnavailable(err) && ctx.Err() == nil {
		reroute(ctx, r.client)
	}
	return err
}

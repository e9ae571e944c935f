package redisconn

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// replicaWaitTimeout is the maximum time to wait for replicas. It is well below the timeout of a reply.
const replicaWaitTimeout = time.Second

// NextVersionLua defines next_version(former) for scripts. former is false if there is no version yet. The next version is the time
// in milliseconds, or one more than the former. So it does not repeat after a failover that loses the latest changes.
const NextVersionLua = `
local function next_version(former)
  local t = redis.call('TIME')
  local version = math.max(tonumber(former or 0) + 1, t[1] * 1000 + math.floor(t[2] / 1000))
  return string.format('%.0f', version)
end
`

// Runner is a client or one of its connections.
type Runner interface {
	redis.Cmdable
	Process(ctx context.Context, cmd redis.Cmder) error
}

// MinReplicas returns the number of replicas that [Conn.WithReplication] waits for.
func (c *Conn) MinReplicas() int { return c.minReplicas }

// WithReplication runs a write to the slot of key, and then waits on the same connection until [Options.MinReplicas]
// replicas have received it, also if it repeats an earlier write. The error is [ErrTooFewReplicas] if the replicas are too slow.
func (c *Conn) WithReplication(ctx context.Context, key string, write func(Runner) error) error {
	if c.minReplicas == 0 {
		return write(c.client)
	}
	node, err := NodeFor(ctx, c.client, key)
	if err != nil {
		return err
	}
	conn := node.Conn()
	defer func() { _ = conn.Close() }()
	if err := write(conn); err != nil {
		ReloadSlots(ctx, c.client)
		return err
	}
	return c.awaitReplicas(ctx, conn)
}

// AwaitReplicas waits until [Options.MinReplicas] replicas of each server have received all earlier writes. The error is
// [ErrTooFewReplicas] if the replicas are too slow.
func (c *Conn) AwaitReplicas(ctx context.Context) error {
	if cluster, ok := c.client.(*redis.ClusterClient); ok && c.minReplicas > 0 {
		return cluster.ForEachMaster(ctx, c.awaitReplicasOf)
	}
	return c.AwaitReplicasOf(ctx, "")
}

// AwaitReplicasOf is AwaitReplicas for the server of a key.
func (c *Conn) AwaitReplicasOf(ctx context.Context, key string) error {
	if c.minReplicas == 0 {
		return nil
	}
	node, err := NodeFor(ctx, c.client, key)
	if err != nil {
		return err
	}
	return c.awaitReplicasOf(ctx, node)
}

func (c *Conn) awaitReplicasOf(ctx context.Context, node *redis.Client) error {
	conn := node.Conn()
	defer func() { _ = conn.Close() }()
	// Redis counts the replicas that have everything up to the last command of the connection, from all connections.
	if err := conn.Ping(ctx).Err(); err != nil {
		return err
	}
	return c.awaitReplicas(ctx, conn)
}

func (c *Conn) awaitReplicas(ctx context.Context, conn *redis.Conn) error {
	n, err := conn.Wait(ctx, c.minReplicas, replicaWaitTimeout).Result()
	if err != nil {
		ReloadSlots(ctx, c.client)
		return err
	}
	if n < int64(c.minReplicas) {
		cause := fmt.Errorf("%w: %d of %d within %s", ErrTooFewReplicas, n, c.minReplicas, replicaWaitTimeout)
		return newUnavailableError("store", cause)
	}
	return nil
}

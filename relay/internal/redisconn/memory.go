package redisconn

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Memory is the memory of a Redis server in bytes, without buffers that do not count toward its limit. Max is 0 without
// a limit.
type Memory struct{ Used, Max int64 }

// Memory returns the memory of the server, or of the fullest master of a cluster.
func (c *Conn) Memory(ctx context.Context) (Memory, error) {
	cluster, ok := c.client.(*redis.ClusterClient)
	if !ok {
		return readMemory(ctx, c.client)
	}
	var (
		mu      sync.Mutex
		fullest Memory
	)
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		m, err := readMemory(ctx, master)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if m.Max > 0 && (fullest.Max == 0 ||
			float64(m.Used)/float64(m.Max) > float64(fullest.Used)/float64(fullest.Max)) {
			fullest = m
		}
		return nil
	})
	return fullest, WrapError("read the memory of redis", err)
}

func readMemory(ctx context.Context, client redis.Cmdable) (Memory, error) {
	info, err := client.Info(ctx, "memory").Result()
	if err != nil {
		return Memory{}, WrapError("read the memory of redis", err)
	}
	field := func(name string) int64 {
		n, _ := strconv.ParseInt(InfoField(info, name), 10, 64)
		return n
	}
	return Memory{Used: field("used_memory") - field("mem_not_counted_for_evict"), Max: field("maxmemory")}, nil
}

// IsOutOfMemory reports whether Redis rejected a write because it has reached its memory limit. It stored nothing.
func IsOutOfMemory(err error) bool { return err != nil && strings.Contains(err.Error(), "OOM ") }

// MemorySamples is the number of nodes of a stream, or fields of a hash, that Redis measures. It limits the time of the
// command to about a millisecond. A stream of more nodes, which have up to about a hundred entries each, is estimated from its
// oldest ones.
const MemorySamples = 10_000

// streamSamples is the number of nodes of a stream whose length is to be limited. New entries may be much larger than old ones, so
// more are measured. It limits the time of the command to about ten milliseconds.
const streamSamples = 100_000

// KeySizes returns the memory of each key in bytes, 0 for a missing one.
func KeySizes(ctx context.Context, client redis.Cmdable, keys []string) ([]int64, error) {
	replies := make([]*redis.IntCmd, len(keys))
	_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, key := range keys {
			replies[i] = pipe.MemoryUsage(ctx, key, MemorySamples)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, WrapError("measure keys", err)
	}
	sizes := make([]int64, len(keys))
	for i, reply := range replies {
		if err := reply.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return nil, WrapError("measure keys", err)
		}
		sizes[i] = reply.Val()
	}
	return sizes, nil
}

package quota

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

//go:embed scripts/lease.lua
var leaseSource string

var leaseScript = redisconn.NewScript(leaseSource)

// Lease is the result of [Store.Lease].
type Lease struct {
	// Granted is zero if the tokens of the request are not available.
	Granted Amount
	// RetryIn is the time until they are, or zero if they were granted.
	RetryIn time.Duration
}

// Store leases tokens of buckets that all nodes share. It may be used concurrently.
type Store interface {
	// Lease takes need from a bucket, and more up to want if it is available. Parts without a limit are zero in both.
	Lease(ctx context.Context, bucket string, l Limit, need, want Amount) (Lease, error)
}

// RedisStore is a [Store] in Redis.
type RedisStore struct {
	client redis.UniversalClient
	keys   keyspace.Space
}

var _ Store = (*RedisStore)(nil)

// NewRedisStore returns a store with its keys in a key space.
func NewRedisStore(client redis.UniversalClient, keys keyspace.Space) *RedisStore {
	return &RedisStore{client: client, keys: keys}
}

// Lease implements [Store]. It returns an error if Redis does not respond.
func (s *RedisStore) Lease(ctx context.Context, bucket string, l Limit, need, want Amount) (Lease, error) {
	reply, err := leaseScript.Run(ctx, s.client, []string{bucketKey(s.keys, bucket)},
		l.PerSecond.Count, l.PerSecond.Bytes, l.Burst.Seconds(),
		need.Count, need.Bytes, want.Count, want.Bytes).Int64Slice()
	if err == nil && len(reply) != 3 {
		err = redisconn.ErrUnexpectedReply
	}
	if err != nil {
		return Lease{}, redisconn.WrapError("lease quota", err)
	}
	return Lease{Amount{reply[0], reply[1]}, time.Duration(reply[2]) * time.Millisecond}, nil
}

// bucketKey returns the hash of a bucket: the tokens n and b, and the time at when they were counted. The name is
// hashed because accounts and addresses are chosen by clients.
func bucketKey(k keyspace.Space, bucket string) string {
	sum := sha256.Sum256([]byte(bucket))
	return k.Global("quota:" + hex.EncodeToString(sum[:16]))
}

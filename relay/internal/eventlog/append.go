package eventlog

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// IdempotencyTime is the time for which an idempotency key is kept.
const IdempotencyTime = 10 * time.Minute

// IdempotencyKeySize is about the memory in Redis of the idempotency key of a request, in bytes.
const IdempotencyKeySize = 160

// ErrKeyReused means that an idempotency key was used before for another body.
var ErrKeyReused = errors.New("the idempotency key was used before with a different body")

// HashScopedKey combines an idempotency key with its scope, such as the publisher. Different lists of parts never
// have the same result.
func HashScopedKey(parts ...string) string {
	h := sha256.New()
	var size [8]byte
	for _, part := range parts {
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write([]byte(part))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// HashIdempotencyKey returns the hash of a key, or of its client, for names of Redis keys.
func HashIdempotencyKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}

// AppendRequest asks to append notifications of one hub.
type AppendRequest struct {
	// Hub selects the partition. All notifications must belong to it.
	Hub string
	// Key is an idempotency key. It makes a repeat safe for [IdempotencyTime], or until newer keys of Client take 8 MiB of memory
	// (about 50,000 requests), or less if Redis is small, but at least 100 requests in each partition. It may be empty. The caller
	// scopes it to the publisher. It takes more memory if the IDs of the notifications were not made with [DeriveID].
	Key string
	// Client is the account or API key whose idempotency keys share the limit.
	Client string
	// Digest is a hash of the body of the request. A known Key with another Digest is rejected.
	Digest string
	// Notifications must not be empty. Each has its ID.
	Notifications []relay.Notification
	// Publisher is who publishes them.
	Publisher Publisher
}

// Append appends all notifications to the log of the hub in their order, or none, and returns their IDs. A repeat
// returns the IDs of the first request. The error is [ErrKeyReused] or [redisconn.ErrUnavailable]. The latter means
// that nothing is stored, except that everything may be stored if the reply was lost, and is stored if the error is
// also [redisconn.ErrTooFewReplicas]. A full Redis rejects repeats, too. Append may be called concurrently.
func (l *Log) Append(ctx context.Context, r AppendRequest) ([]string, error) {
	if len(r.Notifications) == 0 {
		return nil, errors.New("append: the request has no events")
	}
	for i := range r.Notifications {
		if n := &r.Notifications[i]; n.Hub != r.Hub {
			return nil, fmt.Errorf("append: event %s belongs to another hub than its request", n.ID)
		}
	}
	partition := l.keys.Partition(r.Hub)
	var err error
	switch {
	case r.Key != "":
		return l.appendOnce(ctx, partition, r)
	case len(r.Notifications) == 1:
		err = l.groupCommits[partition].commitEntry(ctx, entry{
			log: Key(l.keys, partition), n: &r.Notifications[0], publisher: r.Publisher.String(),
		})
	default:
		err = l.appendAll(ctx, Key(l.keys, partition), r)
	}
	if err != nil {
		return nil, redisconn.WrapError("store events", err)
	}
	return listIDs(r.Notifications), nil
}

// addArgs returns the XADD of a notification. go-redis needs no reflection for strings and bytes.
func addArgs(key string, n *relay.Notification, publisher string) []any {
	return []any{
		"XADD", key, "*",
		"id", n.ID, "topic", n.Topic, "hub", n.Hub, "account", n.Account, "data", []byte(n.Data), "publisher", publisher,
	}
}

// appendAll appends several notifications in one transaction. Redis discards a transaction if it rejected one of its
// commands, and it checks for OOM, READONLY and LOADING before it executes any.
func (l *Log) appendAll(ctx context.Context, key string, a AppendRequest) error {
	publisher := a.Publisher.String()
	return l.conn.WithReplication(ctx, key, func(r redisconn.Runner) error {
		cmds, err := r.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := range a.Notifications {
				pipe.Do(ctx, addArgs(key, &a.Notifications[i], publisher)...)
			}
			return nil
		})
		return redisconn.TransactionError(cmds, err)
	})
}

// appendOnce appends the notifications if their idempotency key is new, and stores the key with their IDs.
func (l *Log) appendOnce(ctx context.Context, partition int, a AppendRequest) ([]string, error) {
	const operation = "store events once"
	newerKey, olderKey := ClientIdempotencyKeys(l.keys, partition, HashIdempotencyKey(a.Client))
	keys := []string{Key(l.keys, partition), newerKey, olderKey}
	args := make([]any, 0, 6+6*len(a.Notifications))
	args = append(args, HashIdempotencyKey(a.Key), a.Digest, IdempotencyTime.Milliseconds(),
		l.keyBudget.maxHash(a.Client, partition), encodeIDs(a.Notifications), len(a.Notifications))
	publisher := a.Publisher.String()
	for i := range a.Notifications {
		n := &a.Notifications[i]
		args = append(args, n.ID, n.Topic, n.Hub, n.Account, []byte(n.Data), publisher)
	}
	var reply []any
	err := l.conn.WithReplication(ctx, keys[0], func(r redisconn.Runner) (err error) {
		reply, err = appendScript.Run(ctx, r, keys, args...).Slice()
		return err
	})
	if err != nil {
		return nil, redisconn.WrapError(operation, err)
	}
	if len(reply) == 0 {
		return nil, fmt.Errorf("%s: %w", operation, redisconn.ErrUnexpectedReply)
	}
	stored, _ := reply[0].(string)
	switch {
	case stored == "":
		return nil, ErrKeyReused
	case len(reply) < 3: // a repeat
		return decodeIDs(stored), nil
	}
	newer, _ := reply[1].(int64)
	replaced, _ := reply[2].(int64)
	l.keyBudget.recordSizes(a.Client, partition, newer, replaced, time.Now())
	return listIDs(a.Notifications), nil
}

package backbone

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
)

// IdempotencyTime is how long an idempotency key is remembered (DESIGN, "Publishing").
const IdempotencyTime = 10 * time.Minute

// HashScopedKey makes one idempotency key of several parts, its owner among them, so that no two lists of parts give the same.
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

// AppendRequest is a request to store notifications of one hub.
type AppendRequest struct {
	// Hub decides the partition. Every notification must be of this hub.
	Hub string
	// Key, where not empty, makes a repeat safe for ten minutes. The caller scopes it to the publisher.
	Key string
	// Digest is a hash of the request's body; the same Key with another Digest is refused.
	Digest string
	// Notifications holds at least one, each with its ID.
	Notifications []relay.Notification
}

// Append stores all notifications at the end of the hub's log in their order, or none, and returns their ids; for a
// repeat those of the first time. The error is [ErrKeyReused], or [ErrUnavailable]: then nothing was stored, or, where
// the reply was lost or it is [ErrTooFewReplicas] too, all. It may be called concurrently.
func (b *Store) Append(ctx context.Context, a AppendRequest) ([]string, error) {
	if len(a.Notifications) == 0 {
		return nil, errors.New("append: there is nothing to store")
	}
	for i := range a.Notifications {
		if a.Notifications[i].Hub != a.Hub {
			return nil, fmt.Errorf("append: notification %s belongs to another hub than its request", a.Notifications[i].ID)
		}
	}
	p := b.keys.Partition(a.Hub)
	var err error
	switch {
	case a.Key != "":
		return b.appendOnce(ctx, p, a)
	case len(a.Notifications) == 1:
		err = b.groupCommit.commit(ctx, entry{log: b.keys.Log(p), n: &a.Notifications[0]})
	default:
		err = b.appendAll(ctx, b.keys.Log(p), a.Notifications)
	}
	if err != nil {
		return nil, wrapError("store notifications", err)
	}
	return idsOf(a.Notifications), nil
}

func idsOf(ns []relay.Notification) []string {
	ids := make([]string, len(ns))
	for i := range ns {
		ids[i] = ns[i].ID
	}
	return ids
}

// addArgs is the XADD of one notification. The values go as strings and bytes, so that go-redis need not reflect.
func addArgs(log string, n *relay.Notification) []any {
	return []any{
		"XADD", log, "*",
		"id", n.ID, "topic", n.Topic, "hub", n.Hub, "account", n.Account, "data", []byte(n.Data),
	}
}

// appendAll stores several in one transaction. Redis refuses all of it when a command could not be queued, and what
// it refuses then (OOM, READONLY, LOADING) it refuses before anything is executed.
func (b *Store) appendAll(ctx context.Context, log string, ns []relay.Notification) error {
	return b.withReplication(ctx, log, func(w commandRunner) error {
		_, err := w.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := range ns {
				pipe.Do(ctx, addArgs(log, &ns[i])...)
			}
			return nil
		})
		return err
	})
}

// appendOnce stores notifications whose key is not known yet, and remembers the key with their ids.
func (b *Store) appendOnce(ctx context.Context, partition int, a AppendRequest) ([]string, error) {
	sum := sha256.Sum256([]byte(a.Key))
	keys := []string{b.keys.Log(partition), b.keys.Idempotency(partition, hex.EncodeToString(sum[:16]))}
	args := make([]any, 0, 3+5*len(a.Notifications))
	args = append(args, a.Digest, IdempotencyTime.Milliseconds(), len(a.Notifications))
	for i := range a.Notifications {
		n := &a.Notifications[i]
		args = append(args, n.ID, n.Topic, n.Hub, n.Account, []byte(n.Data))
	}
	var reply []any
	err := b.withReplication(ctx, keys[0], func(w commandRunner) (err error) {
		reply, err = appendScript.Run(ctx, w, keys, args...).Slice()
		return err
	})
	if err != nil {
		return nil, wrapError("store notifications once", err)
	}
	ids := make([]string, 0, len(reply))
	for _, v := range reply {
		id, ok := v.(string)
		if !ok {
			return nil, errors.New("store notifications once: redis answered something that is no id")
		}
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil, ErrKeyReused
	}
	return ids, nil
}

package redisconn

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/streamid"
)

// identityInterval is the time between checks whether Redis still has the identity.
const identityInterval = time.Second

// Identity is the same on all nodes of a relay and after restarts, as long as Redis keeps its data.
type Identity struct {
	// RelayID has 16 hexadecimal digits.
	RelayID string
	// CursorKey is the secret that encrypts cursors.
	CursorKey streamid.CursorKey
}

// RelayIDKey stores the ID of this relay.
func RelayIDKey(k keyspace.Space) string { return k.Global("relay-id") }

// CursorKeyKey stores the secret that encrypts cursors.
func CursorKeyKey(k keyspace.Space) string { return k.Global("cursorkey") }

// Identity returns the identity of the relay. The first node creates it.
func (c *Conn) Identity(ctx context.Context) (Identity, error) {
	var key streamid.CursorKey
	_, _ = rand.Read(key[:]) // documented never to fail
	i, err := c.getOrStoreIdentity(ctx, Identity{randomHex(), key})
	return i, WrapError("read the identity of the relay", err)
}

// KeepIdentity stores the identity again if Redis has lost it, until ctx ends, so nodes that start later have the same one. If
// such a node was faster, this one logs that it must be restarted.
func (c *Conn) KeepIdentity(ctx context.Context, i Identity, log *slog.Logger) error {
	ticker := time.NewTicker(identityInterval)
	defer ticker.Stop()
	isLogged := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		stored, err := c.getOrStoreIdentity(ctx, i)
		if err != nil || stored == i {
			continue
		}
		if !isLogged {
			log.Error("redis has lost its data and another node has created a new key for cursors: restart this node")
		}
		isLogged = true
	}
}

func randomHex() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return hex.EncodeToString(b[:])
}

// getOrStoreIdentity returns the stored identity. What is missing is taken from i and stored.
func (c *Conn) getOrStoreIdentity(ctx context.Context, i Identity) (Identity, error) {
	id, err := c.getOrStore(ctx, RelayIDKey(c.keys), i.RelayID)
	if err != nil {
		return i, err
	}
	key, err := c.getOrStore(ctx, CursorKeyKey(c.keys), string(i.CursorKey[:]))
	if err != nil {
		return i, err
	}
	i.RelayID = id
	if copy(i.CursorKey[:], key) != len(i.CursorKey) {
		return i, fmt.Errorf("key of cursors: %w", ErrUnexpectedReply)
	}
	return i, nil
}

// getOrStore returns a value that never changes. The first caller stores it. Later ones only read, so they succeed in a full
// Redis, which rejects SET.
func (c *Conn) getOrStore(ctx context.Context, key, value string) (string, error) {
	if stored, err := c.client.Get(ctx, key).Result(); !errors.Is(err, redis.Nil) {
		return stored, err
	}
	err := c.client.Do(ctx, "SET", key, value, "NX").Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", err
	}
	return c.client.Get(ctx, key).Result()
}

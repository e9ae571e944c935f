package delivery

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

var (
	//go:embed scripts/state_lock.lua
	takeSource string
	//go:embed scripts/state_save.lua
	keepSource string

	takeScript = redis.NewScript(takeSource)
	keepScript = redis.NewScript(keepSource)
)

// SinkState is what a sink remembers, each name a hash of its own that expires.
func (s *Store) SinkState(sink string) relay.SharedState { return sinkState{s, sink} }

type sinkState struct {
	store *Store
	sink  string
}

// stateLock is a name that this node took by a mark that nobody else has.
type stateLock struct {
	store     *Store
	key, mark string
}

func (m sinkState) Lock(ctx context.Context, name string, hold time.Duration) (string, relay.StateLock, error) {
	sum := sha256.Sum256([]byte(name)) // a name may be long, and hold anything
	h := stateLock{m.store, m.store.keys.SinkMemory(m.sink, hex.EncodeToString(sum[:12])), rand.Text()}
	reply, err := takeScript.Run(ctx, m.store.client, []string{h.key}, h.mark, hold.Milliseconds()).Slice()
	switch {
	case err != nil:
		return "", nil, fmt.Errorf("take what a sink remembers: %w", err)
	case len(reply) == 0:
		return "", nil, relay.ErrLocked
	}
	value, _ := reply[0].(string)
	return value, h, nil
}

func (h stateLock) Save(ctx context.Context, value string, ttl time.Duration) error {
	return h.finish(ctx, "keep", value, ttl)
}

func (h stateLock) Release(ctx context.Context) error { return h.finish(ctx, "release", "", 0) }

func (h stateLock) finish(ctx context.Context, how, value string, ttl time.Duration) error {
	if err := keepScript.Run(ctx, h.store.client, []string{h.key}, h.mark, how, value, ttl.Milliseconds()).Err(); err != nil {
		return fmt.Errorf("%s what a sink remembers: %w", how, err)
	}
	return nil
}

package deliver

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
	//go:embed scripts/take.lua
	takeSource string
	//go:embed scripts/keep.lua
	keepSource string

	takeScript = redis.NewScript(takeSource)
	keepScript = redis.NewScript(keepSource)
)

// Memory is what a sink remembers, each name a hash of its own that expires.
func (s *Store) Memory(sink string) relay.Memory { return memory{s, sink} }

type memory struct {
	store *Store
	sink  string
}

// held is a name that this node took by a mark that nobody else has.
type held struct {
	store     *Store
	key, mark string
}

func (m memory) Take(ctx context.Context, name string, hold time.Duration) (string, relay.Held, error) {
	sum := sha256.Sum256([]byte(name)) // a name may be long, and hold anything
	h := held{m.store, m.store.keys.Memory(m.sink, hex.EncodeToString(sum[:12])), rand.Text()}
	reply, err := takeScript.Run(ctx, m.store.client, []string{h.key}, h.mark, hold.Milliseconds()).Slice()
	switch {
	case err != nil:
		return "", nil, fmt.Errorf("take what a sink remembers: %w", err)
	case len(reply) == 0:
		return "", nil, relay.ErrTaken
	}
	value, _ := reply[0].(string)
	return value, h, nil
}

func (h held) Keep(ctx context.Context, value string, ttl time.Duration) error {
	return h.settle(ctx, "keep", value, ttl)
}

func (h held) Release(ctx context.Context) error { return h.settle(ctx, "release", "", 0) }

func (h held) settle(ctx context.Context, how, value string, ttl time.Duration) error {
	if err := keepScript.Run(ctx, h.store.client, []string{h.key}, h.mark, how, value, ttl.Milliseconds()).Err(); err != nil {
		return fmt.Errorf("%s what a sink remembers: %w", how, err)
	}
	return nil
}

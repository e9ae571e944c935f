package auth

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// holds are the tokens whose streams are open on this node.
type holds struct {
	mu    sync.Mutex
	open  map[string]int // by Redis key: how many streams
	ended []string       // whose last stream has ended, until their time was set once more
	wake  chan struct{}
}

// holdBatch is how many tokens are renewed with one write.
const holdBatch = 500

// Hold returns the grant of a token and leaves the token as it is, for a stream whose client may come back with it: the
// token lives while the stream is open, and the store's ttl from its end. While [Tokens.Run] runs, that is: a node that
// was killed renews nothing, so that a token never outlives its stream by more than the ttl. Release is called once, when
// the stream has ended.
func (t *Tokens) Hold(ctx context.Context, token string) (g Grant, release func(), err error) {
	g, err = t.read(ctx, func(ctx context.Context, key string) *redis.StringCmd { return t.client.GetEx(ctx, key, t.ttl) }, token)
	if err != nil {
		return Grant{}, nil, err
	}
	key := t.key(CleanToken(token))
	t.holds.mu.Lock()
	defer t.holds.mu.Unlock()
	t.holds.open[key]++
	return g, func() { t.release(key) }, nil
}

func (t *Tokens) release(key string) {
	t.holds.mu.Lock()
	defer t.holds.mu.Unlock()
	if t.holds.open[key]--; t.holds.open[key] > 0 {
		return
	}
	delete(t.holds.open, key)
	t.holds.ended = append(t.holds.ended, key)
	select {
	case t.holds.wake <- struct{}{}:
	default:
	}
}

// Run renews the tokens that are held until ctx ends, and returns nil.
func (t *Tokens) Run(ctx context.Context) error {
	ticker := time.NewTicker(t.ttl / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			// Whoever is disconnected by the stop has the whole ttl to come back.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			t.renew(last, t.holds.take(true))
			return nil
		case <-t.holds.wake:
			t.renew(ctx, t.holds.take(false))
		case <-ticker.C:
			t.renew(ctx, t.holds.take(true))
		}
	}
}

// take returns the keys whose streams have ended, and with all those whose are open, too.
func (h *holds) take(all bool) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := h.ended
	h.ended = nil
	if all {
		keys = slices.AppendSeq(keys, maps.Keys(h.open))
	}
	return keys
}

// renew gives tokens their whole time. It says nothing of a store that is away: everybody else notices, and there is
// time for another attempt.
func (t *Tokens) renew(ctx context.Context, keys []string) {
	for batch := range slices.Chunk(keys, holdBatch) {
		_, _ = t.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, key := range batch {
				pipe.PExpire(ctx, key, t.ttl)
			}
			return nil
		})
	}
}

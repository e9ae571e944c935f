package auth

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// heldTokens are the tokens whose streams are open on this node.
type heldTokens struct {
	mu       sync.Mutex
	byKey    map[string]*heldToken // by Redis key
	released []*heldToken          // whose last stream has ended, until their time was set once more
	wake     chan struct{}
}

// heldToken is one token that is held.
type heldToken struct {
	key   string // in Redis
	value string // what stands there
	// openStreams and until are guarded by the mutex of holds. Until is when the time of a token is over whose last stream has ended.
	openStreams int
	until       time.Time
	// lastSeen is when it stood there last, and used says that a websocket has used it up since. Both belong to [TokenStore.Run].
	lastSeen time.Time
	consumed bool
}

const (
	// renewBatch is how many tokens are renewed with one write.
	renewBatch = 500
	// consumedTTL is how long Redis remembers that a token which was held is used up. A node that did not reach Redis for as
	// long puts none back, since it cannot know.
	consumedTTL = 24 * time.Hour
)

// KeepAlive returns the grant of a token and leaves the token as it is, for a stream whose client may come back with it: the
// token lives while the stream is open, and the store's ttl from its end, also where Redis has lost it meanwhile. While
// [TokenStore.Run] runs, that is: a node that was killed renews nothing, so that a token never outlives its stream by more than
// the ttl, or twice that where Redis was away at the end. Release is called once, when the stream has ended.
func (t *TokenStore) KeepAlive(ctx context.Context, token string) (g Grant, release func(), err error) {
	g, text, err := t.loadGrant(token, func(key string) (string, error) {
		return holdScript.Run(ctx, t.client, []string{key}, t.ttl.Milliseconds()).Text()
	})
	if err != nil {
		return Grant{}, nil, err
	}
	key := t.redisKey(CleanToken(token))
	t.holds.mu.Lock()
	defer t.holds.mu.Unlock()
	h := t.holds.byKey[key]
	if h == nil {
		h = &heldToken{key: key, value: text, lastSeen: t.now()}
		t.holds.byKey[key] = h
	}
	h.openStreams++
	return g, func() { t.holds.release(h, t.now().Add(t.ttl)) }, nil
}

func (h *heldTokens) release(one *heldToken, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one.openStreams--; one.openStreams > 0 {
		return
	}
	delete(h.byKey, one.key)
	one.until = until
	h.released = append(h.released, one)
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Run renews the tokens that are held until ctx ends, and returns nil.
func (t *TokenStore) Run(ctx context.Context) error {
	ticker := time.NewTicker(t.ttl / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			// Whoever is disconnected by the stop has the whole ttl to come back.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			t.renewAll(last, t.holds.dueForRenewal(true))
			return nil
		case <-t.holds.wake:
			t.renewAll(ctx, t.holds.dueForRenewal(false))
		case <-ticker.C:
			t.renewAll(ctx, t.holds.dueForRenewal(true))
		}
	}
}

// dueForRenewal returns those whose streams have ended, and with all those whose are open, too.
func (h *heldTokens) dueForRenewal(all bool) []*heldToken {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.released
	h.released = nil
	if all {
		list = slices.AppendSeq(list, maps.Values(h.byKey))
	}
	return list
}

// renewAll gives tokens their whole time, and puts those back that Redis has lost. It says nothing of a store that is away:
// everybody else notices, and there is time for another attempt.
func (t *TokenStore) renewAll(ctx context.Context, list []*heldToken) {
	for batch := range slices.Chunk(list, renewBatch) {
		answers := make([]*redis.Cmd, len(batch))
		_, _ = t.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, h := range batch {
				answers[i] = holdScript.Eval(ctx, pipe, []string{h.key}, t.ttl.Milliseconds())
			}
			return nil
		})
		var lost, unknown []*heldToken
		for i, h := range batch {
			if err := answers[i].Err(); err != nil && !errors.Is(err, redis.Nil) {
				unknown = append(unknown, h)
			} else if t.isLost(h, answers[i]) {
				lost = append(lost, h)
			}
		}
		if !t.restore(ctx, lost) {
			unknown = append(unknown, lost...)
		}
		t.holds.requeue(unknown, t.now())
	}
}

// requeue has those renewed the next time, too, whose streams have ended. Those whose time is over meanwhile, or that are held
// anew, are let go.
func (h *heldTokens) requeue(list []*heldToken, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, one := range list {
		if one.openStreams == 0 && h.byKey[one.key] == nil && now.Before(one.until) {
			h.released = append(h.released, one)
		}
	}
}

// isLost says whether Redis has lost a token that nobody has used up.
func (t *TokenStore) isLost(h *heldToken, answer *redis.Cmd) bool {
	text, err := answer.Text()
	switch {
	case errors.Is(err, redis.Nil):
		return !h.consumed && t.now().Sub(h.lastSeen) < consumedTTL
	case text == consumedMarker:
		h.consumed = true
	default:
		h.lastSeen = t.now()
	}
	return false
}

// restore stores tokens anew where nothing stands in their place by now. It reports false where Redis was away.
func (t *TokenStore) restore(ctx context.Context, lost []*heldToken) bool {
	if len(lost) == 0 {
		return true
	}
	_, err := t.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, h := range lost {
			pipe.SetNX(ctx, h.key, h.value, t.ttl)
		}
		return nil
	})
	return err == nil
}

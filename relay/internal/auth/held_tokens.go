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
	released []*heldToken          // tokens whose last stream has ended, and whose TTL must be reset once more
	wake     chan struct{}
}

// heldToken is one token that is kept alive.
type heldToken struct {
	key   string // in Redis
	value string // the value in Redis
	// openStreams and expiresAt are guarded by heldTokens.mu. expiresAt is set when the last stream ends.
	openStreams int
	expiresAt   time.Time
	// lastSeen is the last time at which Redis had the token. consumed reports that a websocket consumed it afterwards.
	// Only [TokenStore.Run] uses both.
	lastSeen time.Time
	consumed bool
}

const (
	// renewBatch is the maximum number of tokens that are renewed with one write.
	renewBatch = 500
	// consumedTTL is the lifetime of the marker of a consumed token. A node that did not reach Redis for that long
	// restores no tokens, because it cannot know whether they were consumed.
	consumedTTL = 24 * time.Hour
)

// KeepAlive returns the grant of a token without consuming it, for a stream whose client may reconnect with the same
// token. While [TokenStore.Run] runs, the token lives as long as the stream is open, and for the TTL of the store after
// its end, even if Redis lost the token. A killed node renews nothing. A token therefore never outlives its stream by
// more than the TTL, or twice the TTL if Redis was unavailable at the end. The caller must call release once when the
// stream has ended.
func (t *TokenStore) KeepAlive(ctx context.Context, token string) (g Grant, release func(), err error) {
	g, text, err := t.loadGrant(token, func(key string) (string, error) {
		return keepAliveScript.Run(ctx, t.client, []string{key}, t.ttl.Milliseconds()).Text()
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

func (h *heldTokens) release(token *heldToken, expiresAt time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if token.openStreams--; token.openStreams > 0 {
		return
	}
	delete(h.byKey, token.key)
	token.expiresAt = expiresAt
	h.released = append(h.released, token)
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Run renews tokens that are kept alive until ctx ends, and returns nil.
func (t *TokenStore) Run(ctx context.Context) error {
	ticker := time.NewTicker(t.ttl / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			// Clients that the shutdown disconnects have the full TTL to reconnect.
			lastCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			t.renewAll(lastCtx, t.holds.dueForRenewal(true))
			return nil
		case <-t.holds.wake:
			t.renewAll(ctx, t.holds.dueForRenewal(false))
		case <-ticker.C:
			t.renewAll(ctx, t.holds.dueForRenewal(true))
		}
	}
}

// dueForRenewal returns the tokens whose streams have ended. If all is true, it also returns those with open streams.
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

// renewAll resets the TTL of tokens, and restores tokens that Redis lost. It logs no errors of Redis, because other
// components do, and because there is time for another attempt.
func (t *TokenStore) renewAll(ctx context.Context, list []*heldToken) {
	for batch := range slices.Chunk(list, renewBatch) {
		replies := make([]*redis.Cmd, len(batch))
		_, _ = t.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, token := range batch {
				replies[i] = keepAliveScript.Eval(ctx, pipe, []string{token.key}, t.ttl.Milliseconds())
			}
			return nil
		})
		var lost, unknown []*heldToken
		for i, token := range batch {
			if err := replies[i].Err(); err != nil && !errors.Is(err, redis.Nil) {
				unknown = append(unknown, token)
			} else if t.isLost(token, replies[i]) {
				lost = append(lost, token)
			}
		}
		if !t.restoreTokens(ctx, lost) {
			unknown = append(unknown, lost...)
		}
		t.holds.requeueTokens(unknown, t.now())
	}
}

// requeueTokens schedules another renewal of tokens whose streams have ended. It skips tokens that have expired or have a new
// stream.
func (h *heldTokens) requeueTokens(list []*heldToken, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, token := range list {
		if token.openStreams == 0 && h.byKey[token.key] == nil && now.Before(token.expiresAt) {
			h.released = append(h.released, token)
		}
	}
}

// isLost reports whether Redis lost a token that was not consumed.
func (t *TokenStore) isLost(token *heldToken, reply *redis.Cmd) bool {
	text, err := reply.Text()
	switch {
	case errors.Is(err, redis.Nil):
		return !token.consumed && t.now().Sub(token.lastSeen) < consumedTTL
	case text == consumedMarker:
		token.consumed = true
	default:
		token.lastSeen = t.now()
	}
	return false
}

// restoreTokens stores lost tokens again unless their keys exist. It returns false if Redis was unavailable.
func (t *TokenStore) restoreTokens(ctx context.Context, lost []*heldToken) bool {
	if len(lost) == 0 {
		return true
	}
	_, err := t.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, token := range lost {
			pipe.SetNX(ctx, token.key, token.value, t.ttl)
		}
		return nil
	})
	return err == nil
}

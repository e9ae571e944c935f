package auth

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// HoldState reports whether a stream may still use its token.
type HoldState int32

// The states of a [Hold]. Only HoldActive changes.
const (
	HoldActive HoldState = iota
	// HoldReplaced: another stream was opened with the token.
	HoldReplaced
	// HoldRevoked: the token was revoked, or opened a websocket.
	HoldRevoked
	// HoldExpired: the token reached its maximum age.
	HoldExpired
)

// Hold keeps the token of one event stream alive. All methods may be called concurrently.
type Hold struct {
	store      *TokenStore
	key        string // in Redis
	value      string // the value in Redis while the token belongs to this stream
	generation uint64
	deadline   time.Time
	onEnd      func()
	state      atomic.Int32

	// released and expiresAt are guarded by heldTokens.mu. expiresAt is set when the stream ends.
	released  bool
	expiresAt time.Time
	// lastSeen is the last time at which Redis had the token. Only [TokenStore.Run] uses it.
	lastSeen time.Time
}

// State returns the state of the token.
func (h *Hold) State() HoldState {
	if s := HoldState(h.state.Load()); s != HoldActive || h.store.now().Before(h.deadline) {
		return s
	}
	return HoldExpired
}

// Deadline returns the time when the token reaches its maximum age.
func (h *Hold) Deadline() time.Time { return h.deadline }

// end ends the use of the token. It calls onEnd unless the token was already lost.
func (h *Hold) end(s HoldState) {
	if h.state.CompareAndSwap(int32(HoldActive), int32(s)) {
		h.onEnd()
	}
}

// Release ends the hold when its stream has ended. Call it once. The token lives for the TTL of the store, so that the
// client can reconnect.
func (h *Hold) Release() { h.store.holds.release(h, h.store.now().Add(h.store.opts.TTL)) }

// heldTokens are the tokens whose streams are open on this node.
type heldTokens struct {
	mu       sync.Mutex
	byKey    map[string]*Hold // by Redis key
	bytes    heldBytes
	released []*Hold // tokens of ended streams, whose TTL must be reset a last time
	wake     chan struct{}
}

const (
	// renewBatch is the maximum number of tokens that are renewed with one write.
	renewBatch = 500
	// consumedTTLs is the lifetime of the marker of a consumed token, as a multiple of the TTL of tokens. A node that
	// did not reach Redis for that long restores no tokens, because it cannot know whether they were consumed.
	consumedTTLs = 10
)

// consumedTTL returns the lifetime of the marker of a consumed token.
func (t *TokenStore) consumedTTL() time.Duration { return consumedTTLs * t.opts.TTL }

// KeepAlive makes the stream of the caller the only one of a token. It does not consume the token, because the client
// of an event stream reconnects with the same one. A stream that used the token before, on any node, is ended.
//
// While [TokenStore.Run] runs, the token lives as long as the stream is open, and for the TTL of the store after its
// end, even if Redis lost the token. No stream may use it longer than the StreamTTL after its first stream was opened.
// A killed node renews nothing, so a token never outlives its stream by more than the TTL, or twice the TTL if Redis
// was unavailable at the end.
//
// If the owner of the token keeps too many alive on this node, it returns [ErrTooManyHeld] and does not change the token.
//
// onEnd is called at most once, when the state of the hold has changed. It must not block. The caller must call
// [Hold.Release] when the stream has ended.
func (t *TokenStore) KeepAlive(ctx context.Context, token string, onEnd func()) (*Hold, error) {
	now, key := t.now(), t.redisKey(CleanToken(token))
	if err := t.countStream(ctx, token, key, now); err != nil {
		return nil, err
	}
	_, text, err := t.loadGrant(token, func(key string) (string, error) {
		return keepAliveScript.Run(ctx, t.opts.Client, []string{key}, now.UnixMilli(), t.opts.TTL.Milliseconds(),
			now.Add(t.opts.StreamTTL).UnixMilli()).Text()
	})
	if err != nil {
		t.holds.endStream(key, now, now)
		return nil, err
	}
	h := &Hold{store: t, key: key, value: text, onEnd: onEnd, lastSeen: now}
	h.generation, h.deadline, _ = parseHeld(text)
	t.holds.add(h)
	// Another node may have obtained the token before handleChange knew this stream.
	if text, err := t.opts.Client.Get(ctx, key).Result(); err == nil {
		h.endIfChanged(text)
	}
	if h.generation > 1 {
		t.announce(ctx, h.key, strconv.FormatUint(h.generation, 10))
	}
	return h, nil
}

// countStream counts a stream that is about to use a token.
func (t *TokenStore) countStream(ctx context.Context, token, key string, now time.Time) error {
	g, text, err := t.loadGrant(token, func(key string) (string, error) { return t.opts.Client.Get(ctx, key).Result() })
	if err != nil {
		return err
	}
	maxBytes := int64(0)
	if t.opts.MaxHeldBytes != nil {
		maxBytes = t.opts.MaxHeldBytes()
	}
	t.holds.mu.Lock()
	defer t.holds.mu.Unlock()
	if !t.holds.bytes.addStream(key, g.Owner(), storedSize(text), maxBytes, now) {
		return ErrTooManyHeld
	}
	return nil
}

func (h *heldTokens) endStream(key string, expiresAt, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bytes.endStream(key, expiresAt, now)
}

// parseHeld parses the value of a token that is kept alive.
func parseHeld(text string) (generation uint64, deadline time.Time, ok bool) {
	fields := strings.SplitN(text, " ", 4) // the first is empty
	if len(fields) < 4 || fields[0] != "" {
		return 0, time.Time{}, false
	}
	generation, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return 0, time.Time{}, false
	}
	ms, err := strconv.ParseInt(fields[2], 10, 64)
	return generation, time.UnixMilli(ms), err == nil
}

// announce tells all nodes that a token has a new stream, or none with [consumedMarker]. Errors are ignored, because
// the nodes notice the change at the next renewal.
func (t *TokenStore) announce(ctx context.Context, key, generation string) {
	_ = t.opts.Client.Publish(ctx, t.opts.Changes, generation+" "+key).Err()
}

// handleChange ends the stream of a token that has a later one.
func (t *TokenStore) handleChange(message string) {
	generation, key, _ := strings.Cut(message, " ")
	t.holds.mu.Lock()
	h := t.holds.byKey[key]
	t.holds.mu.Unlock()
	if h == nil {
		return
	}
	if generation == consumedMarker {
		h.end(HoldRevoked)
	} else if n, err := strconv.ParseUint(generation, 10, 64); err == nil && n > h.generation {
		h.end(HoldReplaced)
	}
}

// add adds the hold of a new stream and ends the earlier one of its token on this node.
func (h *heldTokens) add(hold *Hold) {
	h.mu.Lock()
	former := h.byKey[hold.key]
	if former != nil && former.generation > hold.generation {
		former, hold = hold, former
	}
	h.byKey[hold.key] = hold
	h.mu.Unlock()
	if former != nil {
		former.end(HoldReplaced)
	}
}

func (h *heldTokens) release(hold *Hold, expiresAt time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byKey[hold.key] == hold {
		delete(h.byKey, hold.key)
	}
	now := hold.store.now()
	if HoldState(hold.state.Load()) != HoldActive {
		h.bytes.endStream(hold.key, now, now)
		return
	}
	h.bytes.endStream(hold.key, expiresAt, now)
	hold.released, hold.expiresAt = true, expiresAt
	h.released = append(h.released, hold)
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Run renews tokens that are kept alive until ctx ends, and returns nil.
func (t *TokenStore) Run(ctx context.Context) error {
	ticker := time.NewTicker(t.opts.TTL / 3)
	defer ticker.Stop()
	changes := t.opts.Client.Subscribe(ctx, t.opts.Changes)
	defer func() { _ = changes.Close() }()
	messages := changes.Channel()
	for {
		select {
		case <-ctx.Done():
			// Clients that the shutdown disconnects have the full TTL to reconnect.
			lastCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			t.renewAll(lastCtx, t.holds.dueForRenewal(true))
			return nil
		case m, ok := <-messages:
			if !ok {
				messages = nil // Close was called
				continue
			}
			t.handleChange(m.Payload)
		case <-t.holds.wake:
			t.renewAll(ctx, t.holds.dueForRenewal(false))
		case <-ticker.C:
			t.renewAll(ctx, t.holds.dueForRenewal(true))
		}
	}
}

// dueForRenewal returns the tokens whose streams have ended. If all is true, it also returns those with open streams.
func (h *heldTokens) dueForRenewal(all bool) []*Hold {
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
func (t *TokenStore) renewAll(ctx context.Context, list []*Hold) {
	list = slices.DeleteFunc(list, func(h *Hold) bool { return h.State() != HoldActive })
	for batch := range slices.Chunk(list, renewBatch) {
		replies := make([]*redis.Cmd, len(batch))
		_, _ = t.opts.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, h := range batch {
				replies[i] = renewScript.Eval(ctx, pipe, []string{h.key}, h.value, h.remainingTTL().Milliseconds())
			}
			return nil
		})
		var lost, unknown []*Hold
		for i, h := range batch {
			if err := replies[i].Err(); err != nil && !errors.Is(err, redis.Nil) {
				unknown = append(unknown, h)
			} else if h.isLost(replies[i]) {
				lost = append(lost, h)
			}
		}
		if !t.restoreTokens(ctx, lost) {
			unknown = append(unknown, lost...)
		}
		t.holds.requeueTokens(unknown, t.now())
	}
}

// requeueTokens schedules another renewal of tokens whose streams have ended. It skips tokens that have expired or have
// a new stream.
func (h *heldTokens) requeueTokens(list []*Hold, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, hold := range list {
		if hold.released && h.byKey[hold.key] == nil && now.Before(hold.expiresAt) {
			h.released = append(h.released, hold)
		}
	}
}

// remainingTTL is the TTL of the token in Redis. It is at least 1 ms.
func (h *Hold) remainingTTL() time.Duration {
	return max(min(h.store.opts.TTL, h.deadline.Sub(h.store.now())), time.Millisecond)
}

// isLost reports whether Redis lost the token. It ends the hold if the token no longer belongs to its stream.
func (h *Hold) isLost(reply *redis.Cmd) bool {
	now := h.store.now()
	text, err := reply.Text()
	switch {
	case errors.Is(err, redis.Nil):
		return now.Sub(h.lastSeen) < h.store.consumedTTL()
	case text == h.value:
		h.lastSeen = now
	default:
		h.endIfChanged(text)
	}
	return false
}

// endIfChanged ends the hold if the value of the token in Redis belongs to a later stream, or to none. An older value expires soon:
// Redis lost the newest in a failover. The token is then restored.
func (h *Hold) endIfChanged(text string) {
	if text == consumedMarker {
		h.end(HoldRevoked)
	} else if generation, _, ok := parseHeld(text); ok && generation > h.generation {
		h.end(HoldReplaced)
	}
}

// restoreTokens stores lost tokens again unless their keys exist. It returns false if Redis was unavailable.
func (t *TokenStore) restoreTokens(ctx context.Context, lost []*Hold) bool {
	if len(lost) == 0 {
		return true
	}
	_, err := t.opts.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, h := range lost {
			pipe.SetNX(ctx, h.key, h.value, h.remainingTTL())
		}
		return nil
	})
	return err == nil
}

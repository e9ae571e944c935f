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

// holds are the tokens whose streams are open on this node.
type holds struct {
	mu    sync.Mutex
	open  map[string]*hold // by Redis key
	ended []*hold          // whose last stream has ended, until their time was set once more
	wake  chan struct{}
}

// hold is one token that is held.
type hold struct {
	key  string // in Redis
	text string // what stands there
	// streams and until are guarded by the mutex of holds. Until is when the time of a token is over whose last stream has ended.
	streams int
	until   time.Time
	// seen is when it stood there last, and used says that a websocket has used it up since. Both belong to [Tokens.Run].
	seen time.Time
	used bool
}

const (
	// holdBatch is how many tokens are renewed with one write.
	holdBatch = 500
	// usedUpFor is how long Redis remembers that a token which was held is used up. A node that did not reach Redis for as
	// long puts none back, since it cannot know.
	usedUpFor = 24 * time.Hour
)

// Hold returns the grant of a token and leaves the token as it is, for a stream whose client may come back with it: the
// token lives while the stream is open, and the store's ttl from its end, also where Redis has lost it meanwhile. While
// [Tokens.Run] runs, that is: a node that was killed renews nothing, so that a token never outlives its stream by more than
// the ttl, or twice that where Redis was away at the end. Release is called once, when the stream has ended.
func (t *Tokens) Hold(ctx context.Context, token string) (g Grant, release func(), err error) {
	g, text, err := t.read(token, func(key string) (string, error) {
		return holdScript.Run(ctx, t.client, []string{key}, t.ttl.Milliseconds()).Text()
	})
	if err != nil {
		return Grant{}, nil, err
	}
	key := t.key(CleanToken(token))
	t.holds.mu.Lock()
	defer t.holds.mu.Unlock()
	h := t.holds.open[key]
	if h == nil {
		h = &hold{key: key, text: text, seen: t.now()}
		t.holds.open[key] = h
	}
	h.streams++
	return g, func() { t.holds.release(h, t.now().Add(t.ttl)) }, nil
}

func (h *holds) release(one *hold, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one.streams--; one.streams > 0 {
		return
	}
	delete(h.open, one.key)
	one.until = until
	h.ended = append(h.ended, one)
	select {
	case h.wake <- struct{}{}:
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

// take returns those whose streams have ended, and with all those whose are open, too.
func (h *holds) take(all bool) []*hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.ended
	h.ended = nil
	if all {
		list = slices.AppendSeq(list, maps.Values(h.open))
	}
	return list
}

// renew gives tokens their whole time, and puts those back that Redis has lost. It says nothing of a store that is away:
// everybody else notices, and there is time for another attempt.
func (t *Tokens) renew(ctx context.Context, list []*hold) {
	for batch := range slices.Chunk(list, holdBatch) {
		answers := make([]*redis.Cmd, len(batch))
		_, _ = t.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, h := range batch {
				answers[i] = holdScript.Eval(ctx, pipe, []string{h.key}, t.ttl.Milliseconds())
			}
			return nil
		})
		var lost, unknown []*hold
		for i, h := range batch {
			if err := answers[i].Err(); err != nil && !errors.Is(err, redis.Nil) {
				unknown = append(unknown, h)
			} else if t.lost(h, answers[i]) {
				lost = append(lost, h)
			}
		}
		if !t.putBack(ctx, lost) {
			unknown = append(unknown, lost...)
		}
		t.holds.again(unknown, t.now())
	}
}

// again has those renewed the next time, too, whose streams have ended. Those whose time is over meanwhile, or that are held
// anew, are let go.
func (h *holds) again(list []*hold, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, one := range list {
		if one.streams == 0 && h.open[one.key] == nil && now.Before(one.until) {
			h.ended = append(h.ended, one)
		}
	}
}

// lost says whether Redis has lost a token that nobody has used up.
func (t *Tokens) lost(h *hold, answer *redis.Cmd) bool {
	text, err := answer.Text()
	switch {
	case errors.Is(err, redis.Nil):
		return !h.used && t.now().Sub(h.seen) < usedUpFor
	case text == usedUp:
		h.used = true
	default:
		h.seen = t.now()
	}
	return false
}

// putBack stores tokens anew where nothing stands in their place by now. It reports false where Redis was away.
func (t *Tokens) putBack(ctx context.Context, lost []*hold) bool {
	if len(lost) == 0 {
		return true
	}
	_, err := t.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, h := range lost {
			pipe.SetNX(ctx, h.key, h.text, t.ttl)
		}
		return nil
	})
	return err == nil
}

package delivery

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

const (
	// maxThrottle bounds how long a destination may keep the whole sink waiting. One delivery it may put off longer.
	maxThrottle = time.Hour
	// minDefaultThrottle and restMost bound the rests after a 429 that names no time; they double from one to the next.
	minDefaultThrottle = time.Second
	maxDefaultThrottle = time.Minute
)

// throttleRemaining returns how long the destination is to be left alone.
func (g *rateLimiter) throttleRemaining() time.Duration {
	until := g.throttledUntil.Load()
	if until == 0 {
		return 0
	}
	return max(0, time.Unix(0, until).Sub(g.now()))
}

// observeResponse draws the conclusion from the answer to an attempt: a destination that says that it gets too much is left alone
// by the whole sink, for as long as it asked. counts is false for an attempt that was broken off and says nothing.
func (g *rateLimiter) observeResponse(ctx context.Context, counts bool, err error) {
	if err == nil {
		g.mu.Lock()
		g.throttleCount = 0
		g.mu.Unlock()
		return
	}
	var answer *relay.ResponseError
	if !counts || !errors.As(err, &answer) {
		return
	}
	outcome, named := relay.Classify(err)
	if outcome != relay.OutcomeRetry {
		return
	}
	switch {
	case named > 0 && (answer.Status == http.StatusTooManyRequests || answer.Status == http.StatusServiceUnavailable):
		named = min(named, maxThrottle)
	case answer.Status == http.StatusTooManyRequests && g.throttleRemaining() == 0:
		// What was under way when the rest began says nothing new.
		g.mu.Lock()
		named = min(minDefaultThrottle<<min(g.throttleCount, 10), maxDefaultThrottle)
		g.throttleCount++
		g.mu.Unlock()
	default:
		return
	}
	if !g.setThrottle(named) || !g.hasRate() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.CommandTimeout)
	defer cancel()
	// Where Redis is away this node keeps the rest, and nobody passes anyway.
	_ = g.store.Cooldown(ctx, g.rateName(), g.RateLimit, named)
	g.setThrottle(named) // Redis' rest began later than ours: without this it would seem to begin twice
}

// setThrottle remembers a rest and reports whether it is longer than the one that is known.
func (g *rateLimiter) setThrottle(wait time.Duration) bool {
	until := g.now().Add(wait).UnixNano()
	g.mu.Lock()
	if until <= g.throttledUntil.Load() || g.closed {
		g.mu.Unlock()
		return false
	}
	begins := g.throttleRemaining() == 0
	g.throttledUntil.Store(until)
	g.retryTokens = 0
	if g.throttleTimer != nil {
		g.throttleTimer.Stop()
	}
	g.throttleTimer = time.AfterFunc(wait, func() {
		if g.throttledUntil.Load() == until {
			g.onThrottle(false)
		}
	})
	g.mu.Unlock()
	if begins {
		g.onThrottle(true)
	}
	return true
}

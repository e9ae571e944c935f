package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/redis/go-redis/v9"
)

// maxRefillWait bounds the wait between two questions, so that a rate which was deleted in Redis begins anew.
const maxRefillWait = time.Minute

// The delays after Redis did not respond.
const (
	minRefillDelay = 100 * time.Millisecond
	maxRefillDelay = 2 * time.Second
)

// startRefill starts the goroutine that asks Redis, unless it runs. The caller holds the lock.
func (g *rateLimiter) startRefill() {
	if g.refillDone == nil && !g.closed {
		g.refillDone = make(chan struct{})
		go g.refillLoop(g.refillDone)
	}
}

// wakeRefill wakes that goroutine, since there may be nobody left to wait for, or a spare attempt.
func (g *rateLimiter) wakeRefill() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// takeDemand says how many wait for an attempt to begin, and how many were granted to nobody; both are zero at the end.
func (g *rateLimiter) takeDemand() (waiting, spare int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		waiting = len(g.waiters) + g.retryDemand
	}
	spare, g.surplus = g.surplus, 0
	if waiting+spare == 0 {
		g.refillDone = nil
	}
	return waiting, spare
}

// refillLoop asks until nobody waits. Only one runs at a time.
func (g *rateLimiter) refillLoop(ended chan struct{}) {
	defer close(ended)
	failures := minRefillDelay
	for {
		waiting, spare := g.takeDemand()
		switch {
		case waiting > 0 && spare > 0:
			g.grant(spare)
		case waiting > 0:
			if g.refill(min(waiting, g.tokensPerRequest())) {
				failures = minRefillDelay
				continue
			}
			g.sleepWhileNeeded(failures)
			failures = min(2*failures, maxRefillDelay)
		case spare > 0:
			ctx, cancel := context.WithTimeout(context.Background(), store.CommandTimeout)
			// One that is lost makes the sink slower for a moment and nothing else.
			_ = g.store.Return(ctx, g.rateName(), g.RateLimit, spare)
			cancel()
		default:
			return
		}
	}
}

// refill asks for n attempts, and waits for those that Redis does not grant yet. It reports false where Redis did not
// answer.
func (g *rateLimiter) refill(n int) bool {
	if wait := g.throttleRemaining(); wait > 0 {
		g.sleepWhileNeeded(wait)
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), store.CommandTimeout)
	granted, err := g.store.Take(ctx, g.rateName(), g.RateLimit, n)
	cancel()
	var refused redis.Error
	switch {
	case errors.As(err, &refused):
		g.grantFallback()
		return true
	case err != nil:
		return false
	case granted.Cooldown:
		g.setThrottle(granted.RetryIn)
		return true
	}
	g.grant(granted.Tokens)
	if missing := n - granted.Tokens; missing > 0 {
		// Several are waited for together, but never until the burst is full and time is lost.
		more := min(missing, max(1, g.Burst/2)) - 1
		g.sleepWhileNeeded(granted.RetryIn + time.Duration(more)*g.Rate.Interval())
	}
	return true
}

// grantFallback lets one begin in each interval, without Redis.
func (g *rateLimiter) grantFallback() {
	now := g.now()
	if wait := g.nextFallbackAt.Sub(now); wait > 0 {
		g.sleepWhileNeeded(wait)
		return
	}
	g.nextFallbackAt = now.Add(g.Rate.Interval())
	g.grant(1)
}

// sleepWhileNeeded sleeps, no longer than somebody waits.
func (g *rateLimiter) sleepWhileNeeded(wait time.Duration) {
	timer := time.NewTimer(min(wait, maxRefillWait))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return
		case <-g.wake:
		}
		g.mu.Lock()
		waits := len(g.waiters)+g.retryDemand > 0 && !g.closed
		g.mu.Unlock()
		if !waits {
			return
		}
	}
}

// close ends the goroutine that asks. Nobody passes any more where there is a rate.
func (g *rateLimiter) close() {
	g.mu.Lock()
	if g.surplus += g.retryTokens; g.surplus > 0 {
		g.startRefill() // gives it back
	}
	g.retryTokens, g.retryDemand, g.closed = 0, 0, true
	asker := g.refillDone
	if g.throttleTimer != nil {
		g.throttleTimer.Stop()
	}
	g.wakeRefill()
	g.mu.Unlock()
	if asker != nil {
		<-asker
	}
}

package deliver

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// askAgain bounds the wait between two questions, so that a rate which was deleted in Redis begins anew.
const askAgain = time.Minute

// ask starts the goroutine that asks Redis, unless it runs. The caller holds the lock.
func (g *gate) ask() {
	if g.asker == nil && !g.closed {
		g.asker = make(chan struct{})
		go g.run(g.asker)
	}
}

// poke wakes that goroutine, since there may be nobody left to wait for, or a spare attempt.
func (g *gate) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// todo says how many wait for an attempt to begin, and how many were granted to nobody; both are zero at the end.
func (g *gate) todo() (waiting, spare int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		waiting = len(g.line) + g.wanted
	}
	spare, g.spare = g.spare, 0
	if waiting+spare == 0 {
		g.asker = nil
	}
	return waiting, spare
}

// run asks until nobody waits. Only one runs at a time.
func (g *gate) run(ended chan struct{}) {
	defer close(ended)
	failures := persistFirst
	for {
		waiting, spare := g.todo()
		switch {
		case waiting > 0 && spare > 0:
			g.hand(spare)
		case waiting > 0:
			if g.question(min(waiting, g.batch())) {
				failures = persistFirst
				continue
			}
			g.pause(failures)
			failures = min(2*failures, persistMost)
		case spare > 0:
			ctx, cancel := context.WithTimeout(context.Background(), lastChance)
			// One that is lost makes the sink slower for a moment and nothing else.
			_ = g.store.unbegin(ctx, g.name(), g.pace, spare)
			cancel()
		default:
			return
		}
	}
}

// question asks for n attempts, and waits for those that Redis does not grant yet. It reports false where Redis did not
// answer.
func (g *gate) question(n int) bool {
	if wait := g.rests(); wait > 0 {
		g.pause(wait)
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastChance)
	granted, err := g.store.begin(ctx, g.name(), g.pace, n)
	cancel()
	var refused redis.Error
	switch {
	case errors.As(err, &refused):
		g.alone()
		return true
	case err != nil:
		return false
	case granted.rest:
		g.note(granted.next)
		return true
	}
	g.hand(granted.n)
	if missing := n - granted.n; missing > 0 {
		// Several are waited for together, but never until the burst is full and time is lost.
		more := min(missing, max(1, g.burst/2)) - 1
		g.pause(granted.next + time.Duration(more)*g.rate.Interval())
	}
	return true
}

// alone lets one begin in each interval, without Redis.
func (g *gate) alone() {
	now := g.now()
	if wait := g.paced.Sub(now); wait > 0 {
		g.pause(wait)
		return
	}
	g.paced = now.Add(g.rate.Interval())
	g.hand(1)
}

// pause sleeps, no longer than somebody waits.
func (g *gate) pause(wait time.Duration) {
	timer := time.NewTimer(min(wait, askAgain))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return
		case <-g.wake:
		}
		g.mu.Lock()
		waits := len(g.line)+g.wanted > 0 && !g.closed
		g.mu.Unlock()
		if !waits {
			return
		}
	}
}

// close ends the goroutine that asks. Nobody passes any more where there is a rate.
func (g *gate) close() {
	g.mu.Lock()
	if g.spare += g.reserved; g.spare > 0 {
		g.ask() // gives it back
	}
	g.reserved, g.wanted, g.closed = 0, 0, true
	asker := g.asker
	if g.timer != nil {
		g.timer.Stop()
	}
	g.poke()
	g.mu.Unlock()
	if asker != nil {
		<-asker
	}
}

package delivery

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	failureThreshold = 10 // failures in a row
	minOpenTime      = time.Second
	maxOpenTime      = time.Minute
	openTimeGrowth   = 2
)

// breaker holds a sink's deliveries back while its destination is down, for this node. While it is open they stay where
// they are, in the queue in its order or in the delay queue, and use up neither a slot nor an attempt nor memory of
// Redis; parking them would cost a write each and turn their order around. One at a time is tried as a probe, after
// pauses that grow.
type breaker struct {
	now func() time.Time
	// onAvailable is called without a lock when there may be room after wait: a probe, or everything.
	onAvailable func(wait time.Duration)
	// onStateChange is called without a lock when it opens or closes.
	onStateChange   func(open bool, cause error)
	initialOpenTime time.Duration

	mu                  sync.Mutex
	consecutiveFailures int // in a row
	open                bool
	probing             bool
	openTime            time.Duration
	probeAt             time.Time     // when the next probe may begin
	waiters             chan struct{} // closed and replaced at every change
}

func newBreaker(now func() time.Time) *breaker {
	return &breaker{
		now: now, initialOpenTime: minOpenTime, waiters: make(chan struct{}),
		onAvailable: func(time.Duration) {}, onStateChange: func(bool, error) {},
	}
}

// allow tells whether an attempt may begin, and whether it is the probe. Each that may is followed by leave.
func (b *breaker) allow() (probe, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return false, true
	}
	if b.probing || b.now().Before(b.probeAt) {
		return false, false
	}
	b.probing = true
	return true, true
}

// available tells how many attempts may begin, at most n, and where none may, in how long it is worth asking again; zero is
// when changed says so.
func (b *breaker) available(n int) (most int, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.open:
		return n, 0
	case b.probing:
		return 0, 0
	}
	if wait := b.probeAt.Sub(b.now()); wait > 0 {
		return 0, wait
	}
	return min(n, 1), 0
}

// wait returns when enter may succeed, when stop is closed, or with the error of ctx.
func (b *breaker) wait(ctx context.Context, stop <-chan struct{}) error {
	for {
		b.mu.Lock()
		open, probing, wait, waiters := b.open, b.probing, b.probeAt.Sub(b.now()), b.waiters
		b.mu.Unlock()
		if !open || !probing && wait <= 0 {
			return nil
		}
		if probing {
			wait = maxOpenTime // waiters is closed when the probe ends
		}
		timer := time.NewTimer(wait)
		select {
		case <-waiters:
		case <-timer.C:
		case <-stop:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// record says how an attempt ended: counts is false for one that was broken off and says nothing.
func (b *breaker) record(probe, counts bool, err error) {
	down := counts && indicatesOutage(err)
	b.mu.Lock()
	was := b.open
	if probe {
		b.probing = false
	}
	switch {
	case !counts:
	case !down:
		b.consecutiveFailures, b.open, b.openTime = 0, false, 0
	case probe && b.open:
		b.openTime = min(b.openTime*openTimeGrowth, maxOpenTime)
		b.probeAt = b.now().Add(b.openTime)
	default:
		b.consecutiveFailures++
		if !b.open && b.consecutiveFailures >= failureThreshold {
			b.open, b.openTime = true, b.initialOpenTime
			b.probeAt = b.now().Add(b.openTime)
		}
	}
	open, wait := b.open, max(0, b.probeAt.Sub(b.now()))
	tell := probe || was != open
	if tell {
		close(b.waiters)
		b.waiters = make(chan struct{})
	}
	b.mu.Unlock()
	if was != open {
		b.onStateChange(open, err)
	}
	if !open {
		wait = 0
	}
	if tell {
		b.onAvailable(wait)
	}
}

// nextProbeAt is when the next probe may begin, zero while the breaker is closed.
func (b *breaker) nextProbeAt() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return time.Time{}
	}
	return b.probeAt
}

// probeNow lets the next probe begin at once, and the pauses grow from the first again.
func (b *breaker) probeNow() {
	b.mu.Lock()
	if !b.open {
		b.mu.Unlock()
		return
	}
	b.openTime, b.probeAt = b.initialOpenTime, b.now()
	close(b.waiters)
	b.waiters = make(chan struct{})
	probing := b.probing
	b.mu.Unlock()
	if !probing {
		b.onAvailable(0)
	}
}

// indicatesOutage tells whether an attempt's error says something about the destination as a whole: that it cannot be reached,
// does not answer in time, is broken or overloaded. Any other answer shows that it is there.
func indicatesOutage(err error) bool {
	if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry {
		return false
	}
	var answer *relay.ResponseError
	if !errors.As(err, &answer) {
		return true
	}
	return answer.Status == 0 || answer.Status == http.StatusTooManyRequests || answer.Status >= http.StatusInternalServerError
}

package admission

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// maxCooldown limits the time for which a destination may stop its sink. A single delivery may be delayed longer.
	maxCooldown = time.Hour
	// minDefaultCooldown and maxDefaultCooldown limit the cooldowns after a 429 without a time, which double.
	minDefaultCooldown = time.Second
	maxDefaultCooldown = time.Minute
)

// cooldown is a pause that a destination has asked for.
type cooldown struct {
	now func() time.Time
	// onChange is called without the lock when a cooldown starts or ends.
	onChange func(isActive bool)

	// until keeps its monotonic clock reading, so a change of the system's clock does not extend the cooldown.
	until atomic.Pointer[time.Time]

	mu     sync.Mutex
	count  int // consecutive 429 responses without a time
	timer  *time.Timer
	ended  chan struct{} // closed and replaced by endEarly
	closed bool
}

func newCooldown(now func() time.Time, onChange func(isActive bool)) *cooldown {
	return &cooldown{now: now, onChange: onChange, ended: make(chan struct{})}
}

// remaining returns the time until the end of the cooldown.
func (c *cooldown) remaining() time.Duration {
	until := c.until.Load()
	if until == nil {
		return 0
	}
	return max(0, until.Sub(c.now()))
}

// observeResponse returns the time for which a response asks to stop, or 0. counts is false for an attempt that was
// aborted.
func (c *cooldown) observeResponse(counts bool, err error) time.Duration {
	if err == nil {
		c.mu.Lock()
		c.count = 0
		c.mu.Unlock()
		return 0
	}
	var response *relay.ResponseError
	outcome, retryAfter := relay.Classify(err)
	if !counts || outcome != relay.OutcomeRetry || !errors.As(err, &response) {
		return 0
	}
	isTooMany := response.Status == http.StatusTooManyRequests
	switch {
	case retryAfter > 0 && (isTooMany || response.Status == http.StatusServiceUnavailable):
		return min(retryAfter, maxCooldown)
	case isTooMany && c.remaining() == 0: // otherwise the attempt started before the cooldown
		c.mu.Lock()
		defer c.mu.Unlock()
		wait := min(minDefaultCooldown<<min(c.count, 10), maxDefaultCooldown)
		c.count++
		return wait
	}
	return 0
}

// extendBy reports whether the cooldown ends later than before.
func (c *cooldown) extendBy(wait time.Duration) bool {
	until := new(c.now().Add(wait))
	c.mu.Lock()
	if current := c.until.Load(); c.closed || current != nil && !until.After(*current) {
		c.mu.Unlock()
		return false
	}
	starts := c.remaining() == 0
	c.until.Store(until)
	if c.timer != nil {
		c.timer.Stop()
	}
	c.timer = time.AfterFunc(wait, func() {
		if c.until.Load() == until {
			c.onChange(false)
		}
	})
	c.mu.Unlock()
	if starts {
		c.onChange(true)
	}
	return true
}

// endEarly ends the cooldown before its time. It reports whether there was one.
func (c *cooldown) endEarly() bool {
	c.mu.Lock()
	wasActive := c.remaining() > 0
	if wasActive {
		c.until.Store(nil)
		c.timer.Stop()
	}
	close(c.ended)
	c.ended = make(chan struct{})
	c.count = 0
	c.mu.Unlock()
	if wasActive {
		c.onChange(false)
	}
	return wasActive
}

// endedChan returns a channel that endEarly closes.
func (c *cooldown) endedChan() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// wait waits for the end of the cooldown and returns true. It returns false when stop is closed, and the error of ctx
// when that ends.
func (c *cooldown) wait(ctx context.Context, stop <-chan struct{}) (bool, error) {
	for {
		ended := c.endedChan()
		wait := c.remaining()
		if wait <= 0 {
			return true, nil
		}
		if stopped, err := waitFor(ctx, wait, ended, stop); stopped || err != nil {
			return false, err
		}
	}
}

func (c *cooldown) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

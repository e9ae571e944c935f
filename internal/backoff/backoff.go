// Package backoff computes the delays between the retries of a loop, as described at [Backoff].
//
// The retry schedule of deliveries is configured by operators and belongs to relay/internal/delivery.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
)

// jitter is the divisor that limits jitter to one fifth of a delay. Jitter prevents nodes from retrying in step.
const jitter = 5

// Backoff doubles a delay from Min to Max. It must not be used concurrently.
type Backoff struct {
	Min, Max time.Duration

	delay time.Duration // the last delay, without jitter
}

// Next returns the next delay, with up to a fifth of jitter in both directions.
func (b *Backoff) Next() time.Duration {
	b.delay = min(max(2*b.delay, b.Min), b.Max)
	return Jitter(b.delay)
}

// Reset makes the next delay the shortest one again.
func (b *Backoff) Reset() { b.delay = 0 }

// IsReset reports whether Next has not been called since the last Reset.
func (b *Backoff) IsReset() bool { return b.delay == 0 }

// Sleep waits for the next delay. It returns false if ctx ended first.
func (b *Backoff) Sleep(ctx context.Context) bool { return await.Duration(ctx, b.Next()) }

// Jitter lengthens or shortens d by up to a fifth.
func Jitter(d time.Duration) time.Duration {
	part := d / jitter
	return d - part + rand.N(2*part+1)
}

package delivery

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// failureReportInterval bounds how often a node tells Redis about failures, which may come by the thousand.
const failureReportInterval = time.Second

// failureTracker is what this node knows of a sink's failures, so that a success costs nothing while there are none and a
// flood of failures costs one question a second.
type failureTracker struct {
	mu         sync.Mutex
	isFailing  bool      // Redis may remember a failure
	reportedAt time.Time // when it was told last
}

// update takes over what Redis says.
func (f *failureTracker) update(since bool) {
	f.mu.Lock()
	f.isFailing = f.isFailing || since
	f.mu.Unlock()
}

// endFailures tells whether a success ends failures, and counts them as ended.
func (f *failureTracker) endFailures() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	over := f.isFailing
	f.isFailing, f.reportedAt = false, time.Time{}
	return over
}

// shouldReport tells whether Redis is to be told about a failure.
func (f *failureTracker) shouldReport(now time.Time, every time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isFailing = true
	if !f.reportedAt.IsZero() && now.Sub(f.reportedAt).Abs() < every {
		return false
	}
	f.reportedAt = now
	return true
}

// trackOutcome draws the conclusion from an attempt's outcome: it reports true where the sink has only failed for too long
// and was disabled, which leaves the delivery where it is. A delivery that its receiver rejects for good says nothing
// about the next: it neither begins nor ends the failures.
func (p *Pipeline) trackOutcome(ctx context.Context, outcome relay.Outcome, cause error) (disabled bool) {
	switch outcome {
	case relay.OutcomeDelivered:
		if p.failing.endFailures() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), redisTimeout)
			defer cancel()
			if err := p.opts.Store.Failures.Clear(ctx, p.opts.Name); err != nil {
				p.failing.update(true) // the next success tries again
			}
		}
	case relay.OutcomeRetry:
		if p.opts.DisableAfter <= 0 || !p.failing.shouldReport(p.opts.Now(), min(failureReportInterval, p.opts.DisableAfter/10)) {
			return false
		}
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), redisTimeout)
		defer cancel()
		age, err := p.opts.Store.Failures.Record(asking, p.opts.Name)
		// Where Redis is away a later failure will tell.
		if err != nil || age < p.opts.DisableAfter {
			return false
		}
		p.disable(ctx, fmt.Errorf("nothing was delivered for %s, and now: %w", age.Round(time.Second), cause))
		return true
	}
	return false
}

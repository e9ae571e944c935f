package delivery

import (
	"context"
	_ "embed"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

// failureReportInterval bounds how often a node tells Redis about failures, which may come by the thousand.
const failureReportInterval = time.Second

var (
	//go:embed scripts/failure_start.lua
	failingSource string

	failingScript = redis.NewScript(failingSource)
)

// recordFailure returns for how long the sink has only failed, on all nodes together.
func (s *Store) recordFailure(ctx context.Context, sink string) (time.Duration, error) {
	ms, err := failingScript.Run(ctx, s.client, []string{s.keys.FailureStart(sink)}).Int64()
	if err != nil {
		return 0, fmt.Errorf("remember a failure: %w", err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// clearFailures forgets the failures.
func (s *Store) clearFailures(ctx context.Context, sink string) error {
	if err := s.client.Del(ctx, s.keys.FailureStart(sink)).Err(); err != nil {
		return fmt.Errorf("forget the failures of a sink: %w", err)
	}
	return nil
}

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
			if err := p.opts.Store.clearFailures(ctx, p.opts.Name); err != nil {
				p.failing.update(true) // the next success tries again
			}
		}
	case relay.OutcomeRetry:
		if p.opts.DisableAfter <= 0 || !p.failing.shouldReport(p.opts.Now(), min(failureReportInterval, p.opts.DisableAfter/10)) {
			return false
		}
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), redisTimeout)
		defer cancel()
		age, err := p.opts.Store.recordFailure(asking, p.opts.Name)
		// Where Redis is away a later failure will tell.
		if err != nil || age < p.opts.DisableAfter {
			return false
		}
		p.disable(ctx, fmt.Errorf("nothing was delivered for %s, and now: %w", age.Round(time.Second), cause))
		return true
	}
	return false
}

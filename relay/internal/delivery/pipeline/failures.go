package pipeline

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// failureReportInterval is the minimum time between two reports of failures to Redis, because there may be thousands.
const failureReportInterval = time.Second

// failureStore is implemented by [store.Failures], and by a test that counts the calls.
type failureStore interface {
	Record(ctx context.Context, sink string) (time.Duration, error)
	Clear(ctx context.Context, sink string) error
}

// failureTracker finds out for how long a sink has only failed on all nodes together. A success costs nothing while
// there are no failures.
type failureTracker struct {
	opts  *Options
	store failureStore

	mu         sync.Mutex
	isFailing  bool // Redis may contain a failure
	reportedAt time.Time
}

// noteStored takes over whether Redis contains a failure.
func (f *failureTracker) noteStored(isFailing bool) {
	f.mu.Lock()
	f.isFailing = f.isFailing || isFailing
	f.mu.Unlock()
}

// recordSuccess ends the failures.
func (f *failureTracker) recordSuccess(ctx context.Context) {
	f.mu.Lock()
	wasFailing := f.isFailing
	f.isFailing, f.reportedAt = false, time.Time{}
	f.mu.Unlock()
	if !wasFailing {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.CommandTimeout)
	defer cancel()
	if f.store.Clear(ctx, f.opts.Name) != nil {
		f.noteStored(true) // the next success tries again
	}
}

// recordFailure returns an error if the sink has only failed for too long and is to be disabled. A delivery that the
// destination rejects is not a failure, because the next one may succeed.
func (f *failureTracker) recordFailure(ctx context.Context, cause error) error {
	limit := f.opts.DisableAfter
	if limit <= 0 || !f.shouldReport(f.opts.Now(), min(failureReportInterval, limit/10)) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.CommandTimeout)
	defer cancel()
	age, err := f.store.Record(ctx, f.opts.Name)
	// While Redis is unreachable, a later failure finds out.
	if err != nil || age < limit {
		return nil //nolint:nilerr // see above
	}
	return fmt.Errorf("nothing was delivered for %s, and now: %w", age.Round(time.Second), cause)
}

func (f *failureTracker) shouldReport(now time.Time, interval time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isFailing = true
	if !f.reportedAt.IsZero() && now.Sub(f.reportedAt).Abs() < interval {
		return false
	}
	f.reportedAt = now
	return true
}

package deliver

import (
	"context"
	_ "embed"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

// failureEvery bounds how often a node tells Redis about failures, which may come by the thousand.
const failureEvery = time.Second

var (
	//go:embed scripts/failing.lua
	failingSource string

	failingScript = redis.NewScript(failingSource)
)

// failed returns for how long the sink has only failed, on all nodes together.
func (s *Store) failed(ctx context.Context, sink string) (time.Duration, error) {
	ms, err := failingScript.Run(ctx, s.client, []string{s.keys.Failing(sink)}).Int64()
	if err != nil {
		return 0, fmt.Errorf("remember a failure: %w", err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// succeeded forgets the failures.
func (s *Store) succeeded(ctx context.Context, sink string) error {
	if err := s.client.Del(ctx, s.keys.Failing(sink)).Err(); err != nil {
		return fmt.Errorf("forget the failures of a sink: %w", err)
	}
	return nil
}

// failing is what this node knows of a sink's failures, so that a success costs nothing while there are none and a
// flood of failures costs one question a second.
type failing struct {
	mu    sync.Mutex
	since bool      // Redis may remember a failure
	asked time.Time // when it was told last
}

// heard takes over what Redis says.
func (f *failing) heard(since bool) {
	f.mu.Lock()
	f.since = f.since || since
	f.mu.Unlock()
}

// over tells whether a success ends failures, and counts them as ended.
func (f *failing) over() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	over := f.since
	f.since, f.asked = false, time.Time{}
	return over
}

// due tells whether Redis is to be told about a failure.
func (f *failing) due(now time.Time, every time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since = true
	if !f.asked.IsZero() && now.Sub(f.asked).Abs() < every {
		return false
	}
	f.asked = now
	return true
}

// judge draws the conclusion from an attempt's outcome: it reports true where the sink has only failed for too long
// and was disabled, which leaves the delivery where it is. A delivery that its receiver rejects for good says nothing
// about the next: it neither begins nor ends the failures.
func (p *Pipeline) judge(ctx context.Context, outcome relay.Outcome, cause error) (disabled bool) {
	switch outcome {
	case relay.OutcomeDelivered:
		if p.failing.over() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastChance)
			defer cancel()
			if err := p.o.Store.succeeded(ctx, p.o.Name); err != nil {
				p.failing.heard(true) // the next success tries again
			}
		}
	case relay.OutcomeRetry:
		if p.o.DisableAfter <= 0 || !p.failing.due(p.o.Now(), min(failureEvery, p.o.DisableAfter/10)) {
			return false
		}
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastChance)
		defer cancel()
		age, err := p.o.Store.failed(asking, p.o.Name)
		// Where Redis is away a later failure will tell.
		if err != nil || age < p.o.DisableAfter {
			return false
		}
		p.disable(ctx, fmt.Errorf("nothing was delivered for %s, and now: %w", age.Round(time.Second), cause))
		return true
	}
	return false
}

package admission

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// A cooldown keeps the monotonic clock reading. Otherwise setting the system's clock back by an hour would extend it by an hour.
func TestCooldown_UsesMonotonicClock(t *testing.T) {
	t.Parallel()
	c := newCooldown(time.Now, func(bool) {})
	defer c.close()
	c.extendBy(time.Minute)
	if until := c.until.Load().String(); !strings.Contains(until, " m=") {
		t.Errorf("the end %s has no monotonic clock reading", until)
	}
}

// recordedCooldowns is a store without a rate.
type recordedCooldowns struct {
	RateStore
	waits []time.Duration
}

func (r *recordedCooldowns) Cooldown(_ context.Context, _ string, _ store.RateLimit, wait time.Duration) error {
	r.waits = append(r.waits, wait)
	return nil
}

func TestCooldown_GrowsToMaximum(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	a := New(t.Context(), Options{
		Concurrency: 1, RateKey: func() string { return "s" }, Wake: func(time.Duration) {},
		OnCooldown: func(bool) {}, Now: func() time.Time { return now }, Store: &recordedCooldowns{},
	})
	defer a.Close()
	g := a.bucket
	many := &relay.ResponseError{Status: 429}
	for _, step := range []struct {
		err  error
		want time.Duration
	}{
		{&relay.ResponseError{Status: 500}, 0},
		{relay.RetryAfter(&relay.ResponseError{Status: 500}, time.Hour), 0},
		{&relay.ResponseError{Status: 503}, 0},
		{errors.New("no route"), 0},
		{many, time.Second},
		{many, 2 * time.Second},
		{many, 4 * time.Second},
		{many, 8 * time.Second},
		{many, 16 * time.Second},
		{many, 32 * time.Second},
		{many, time.Minute},
		{relay.RetryAfter(many, 5*time.Second), 5 * time.Second},
		{many, time.Minute},
		{nil, 0},
		{many, time.Second},
		{relay.RetryAfter(many, 24*time.Hour), maxCooldown},
		{relay.Permanent(many), 0},
	} {
		g.observeResponse(t.Context(), true, step.err)
		if got := a.Cooldown(); got != step.want {
			t.Fatalf("cooldown after %v: got %s, want %s", step.err, got, step.want)
		}
		// An attempt that started before the cooldown does not extend it.
		if g.observeResponse(t.Context(), true, many); step.want > 0 && a.Cooldown() != step.want {
			t.Fatalf("cooldown after a second 429: got %s, want %s", a.Cooldown(), step.want)
		}
		g.observeResponse(t.Context(), false, relay.RetryAfter(many, 2*time.Hour))
		if step.want == 0 {
			g.cooldown.until.Store(nil)
			g.cooldown.count = 0
		}
		now = now.Add(step.want)
	}
}

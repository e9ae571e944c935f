package migration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// A driver that hangs, be it while it repeats what it said, is stopped each time and asked to go back in the end.
func TestStalledDriverIsStopped(t *testing.T) {
	t.Parallel()
	s := newSite(t, newRedis(t))
	d := &fakeDriver{migrate: func(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
		if m.Undo {
			return errors.New("undone")
		}
		again := time.NewTicker(10 * time.Millisecond)
		defer again.Stop()
		for {
			report(relay.Progress{Step: "copy", Bytes: 1, Total: 2})
			select {
			case <-again.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}}
	s.work(s.b, "w1", d, func(o *WorkerOptions) { o.StallTimeout = 100 * time.Millisecond })
	j := s.over(s.migrate(1, "s2"))
	if j.State != relay.JobError || !strings.Contains(j.Error, "got no further within 100ms") ||
		!strings.HasSuffix(j.Error, "; the instance is back on s1") {
		t.Errorf("%s %q", j.State, j.Error)
	}
	if n := len(d.called()); n != maxDriverFailures+1 {
		t.Errorf("the driver was called %d times", n)
	}
}

// What is slow is no reason to stop a driver that gets on.
func TestSlowDriverIsNotStopped(t *testing.T) {
	t.Parallel()
	s := newSite(t, newRedis(t))
	s.hold = time.Minute // so that only a stall can end a call, and no lease that a busy machine renews late
	const stall, steps = 5 * time.Second, 24
	d := &fakeDriver{migrate: func(ctx context.Context, _ relay.Migration, report func(relay.Progress)) error {
		again := time.NewTicker(stall / 20)
		defer again.Stop()
		for n := range int64(steps) {
			report(relay.Progress{Step: "copy", Bytes: n, Total: steps})
			select {
			case <-again.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}}
	s.work(s.b, "w1", d, func(o *WorkerOptions) { o.StallTimeout = stall })
	if j := s.over(s.migrate(1, "s2")); j.State != relay.JobCompleted || len(d.called()) != 1 {
		t.Errorf("%s %q after %d calls", j.State, j.Error, len(d.called()))
	}
}

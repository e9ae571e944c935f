package migration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// The worker stops a driver without progress each time, even if it repeats old reports, and finally calls it with Undo.
func TestWorker_StopsStalledDriver(t *testing.T) {
	t.Parallel()
	s := newSite(t, newRedis(t))
	s.lease = time.Minute // a late heartbeat would cancel a call
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
	j := s.awaitEnd(s.migrate(1, "s2"))
	if j.State != relay.JobError || !strings.Contains(j.Error, "made no progress for 100ms") ||
		!strings.HasSuffix(j.Error, "; undone") {
		t.Errorf("got state %s, error %q", j.State, j.Error)
	}
	if n := len(d.called()); n != maxDriverFailures+1 {
		t.Errorf("got %d driver calls, want %d", n, maxDriverFailures+1)
	}
}

// The worker does not stop a slow driver with progress.
func TestWorker_KeepsSlowDriver(t *testing.T) {
	t.Parallel()
	s := newSite(t, newRedis(t))
	s.lease = time.Minute // A late heartbeat on a busy machine must not end a call.
	const stall, steps = 15 * time.Second, 22
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
	if j := s.awaitEnd(s.migrate(1, "s2")); j.State != relay.JobCompleted || len(d.called()) != 1 {
		t.Errorf("got state %s, error %q after %d calls", j.State, j.Error, len(d.called()))
	}
}

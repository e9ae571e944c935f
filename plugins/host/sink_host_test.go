package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func TestHost_Deliver(t *testing.T) {
	t.Parallel()
	r := newRig(t, "sdk", nil)
	if s := r.Status(); s.State != StateIdle {
		t.Errorf("%+v before anything was delivered", s)
	}
	r.mustDeliver("a")
	if s := r.Status(); s.State != StateRunning || s.PID == 0 || s.Reason != nil {
		t.Errorf("%+v after a delivery", s)
	}
	wants(t, r.deliver("b", 2, "reject", time.Minute), relay.OutcomePermanent, "bad")
	wants(t, r.deliver("c", 1, "leave", time.Minute), relay.OutcomeGone, "go away")
	err := r.deliver("d", 1, "throttle", time.Minute)
	wants(t, err, relay.OutcomeRetry, "slowly")
	if _, after := relay.Classify(err); after != 2*time.Minute {
		t.Errorf("after %s", after)
	}
	err = r.deliver("e", 1, "fail", time.Minute)
	var answer *relay.ResponseError
	if wants(t, err, relay.OutcomeRetry); !errors.As(err, &answer) || answer.Status != 503 || answer.Body != "later" {
		t.Errorf("answer %+v", answer)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	want := []string{"a_1_ok", "b_2_reject", "c_1_leave", "d_1_throttle", "e_1_fail", "stopped"}
	if got := r.lines(); !slices.Equal(got, want) {
		t.Errorf("the plugin saw %v, want %v", got, want)
	}
	if err := r.deliver("f", 1, "ok", time.Second); !errors.Is(err, errClosed) {
		t.Errorf("after the end: %v", err)
	}
	if r.count(EventStarted) != 1 || r.count(EventExited)+r.count(EventKilled) != 0 ||
		!strings.Contains(r.log.String(), `"version":"1.2.3"`) {
		t.Errorf("events %v", r.events)
	}
}

func TestHost_Close(t *testing.T) {
	t.Parallel()
	unused := newRig(t, "sdk", nil)
	for range 2 {
		if err := unused.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := unused.deliver("a", 1, "ok", time.Second); !errors.Is(err, errClosed) {
		t.Errorf("after the end: %v", err)
	}
	starting := newRig(t, "silent", nil)
	starting.Start()
	if err := starting.Close(); err != nil {
		t.Error(err)
	}
}

// Thousands are on their way at once, and each gets its own answer.
func TestHost_DeliversConcurrently(t *testing.T) {
	t.Parallel()
	r := newRig(t, "sdk", func(o *Options) { o.Config = nil })
	r.mustDeliver("first")
	var wg sync.WaitGroup
	for i := range 5000 {
		wg.Go(func() {
			topic, want := "ok", relay.OutcomeDelivered
			if i%3 == 0 {
				topic, want = "reject", relay.OutcomePermanent
			}
			if got, _ := relay.Classify(r.deliver(fmt.Sprint(i), 1, topic, time.Minute)); got != want {
				t.Errorf("%d is %s, want %s", i, got, want)
			}
		})
	}
	wg.Wait()
}

// An attempt ends at its time limit. The late answer settles nothing, and the next attempt is independent.
func TestHost_IgnoresLateAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, "sdk", nil)
	r.mustDeliver("first")
	r.deliverUntilSent("a", "slow")
	r.until("a late response", func() bool { return r.count(EventLateAck) == 1 })
	if err := r.deliver("a", 2, "ok", time.Minute); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	wants(t, r.Deliver(ctx, one("b", 1, "ok")), relay.OutcomeRetry)
	// The handler sees the cancellation of an attempt.
	ctx, cancel = context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.Deliver(ctx, one("c", 1, "hang")) }()
	r.until("c has arrived", func() bool { return slices.Contains(r.lines(), "c_1_hang") })
	cancel()
	wants(t, <-done, relay.OutcomeRetry, "canceled")
	r.until("the handler has ended", func() bool { return r.count(EventLateAck) == 2 })
}

// deliverUntilSent repeats a short attempt until the plugin has received it, which takes longer on a busy machine.
func (r *rig) deliverUntilSent(id, topic string) {
	r.t.Helper()
	r.until("the plugin has received "+id, func() bool {
		err := r.deliver(id, 1, topic, 100*time.Millisecond)
		return err != nil && strings.Contains(err.Error(), "wait for the response of the plugin")
	})
}

func TestHost_LogsPluginOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t, "sdk", func(o *Options) { o.Env = append(o.Env, "SECRET="+strings.Repeat("secret", 5)) })
	if err := r.deliver("a", 1, "log", time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"level":"WARN","msg":"from the plugin","sink":"watcher","answer":42,"plugin_sink":"forged"`,
		`"msg":"plugin wrote a line","sink":"watcher","stream":"stdout","line":"on stdout","truncated":false`,
		`"stream":"stderr","line":"on stderr ` + strings.Repeat("x", 1000) + `(redacted)","truncated":false`,
	} {
		r.until(want, func() bool { return strings.Contains(r.log.String(), want) })
	}
}

// Deliveries wait while a plugin starts again, and one delivery restarts a plugin that has crashed too often.
func TestHost_ReportsConcurrency(t *testing.T) {
	t.Parallel()
	const several = 2
	r := newRig(t, "sdk", func(o *Options) { o.MaxCrashes = 1 })
	var mu sync.Mutex
	var reported []int // without repetitions
	r.ReportConcurrency(func(n int) {
		mu.Lock()
		defer mu.Unlock()
		reported = slices.Compact(append(reported, min(n, several)))
	})
	check := func(when string, want ...int) {
		t.Helper()
		testkit.Eventually(t, when, func() error {
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(reported, want) {
				return fmt.Errorf("got %v, want %v", reported, want)
			}
			return nil
		})
	}
	r.mustDeliver("a")
	wants(t, r.deliver("b", 1, "die", time.Minute), relay.OutcomeRetry)
	r.mustDeliver("c")
	check("a restart", 1, 0, several, 0, several)
	wants(t, r.deliver("d", 1, "die", time.Minute), relay.OutcomeRetry)
	check("too many crashes", 1, 0, several, 0, several, 0, 1)
}

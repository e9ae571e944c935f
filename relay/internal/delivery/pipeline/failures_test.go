package pipeline

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// failingFor sets the time since the first failure of "s".
func (e *env) failingFor(d time.Duration) {
	e.t.Helper()
	at := strconv.FormatInt(time.Now().Add(-d).UnixMilli(), 10)
	if err := e.client.Set(e.t.Context(), "hubrelay:failing:s", at, 0).Err(); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) remembersFailure() bool {
	n, err := e.client.Exists(e.t.Context(), "hubrelay:failing:s").Result()
	if err != nil {
		e.t.Fatal(err)
	}
	return n == 1
}

func week(o *Options) {
	o.DisableAfter = 120 * time.Hour
	o.Schedule = Schedule{Delays: []time.Duration{time.Hour}}
	o.Fingerprint = "v1"
}

// The time of the first failure is in Redis, so it also counts for a new node.
func TestDisableAfter(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	first := e.pipeline(&fakeSink{answer: answers(errFar)}, week)
	if err := handleDelivery(t.Context(), first, delivery("d1")); err != nil || !e.remembersFailure() {
		t.Fatalf("Handle = %v, remembered %v", err, e.remembersFailure())
	}
	e.failingFor(119 * time.Hour)
	second := e.pipeline(&fakeSink{answer: answers(errFar)}, week)
	if err := handleDelivery(t.Context(), second, delivery("d2")); err != nil {
		t.Fatal("disabled too early: ", err)
	}
	e.failingFor(121 * time.Hour)
	third := e.pipeline(&fakeSink{answer: answers(errFar)}, week)
	if err := handleDelivery(t.Context(), third, delivery("d3")); !errors.Is(err, ErrDisabled) {
		t.Fatalf("Handle = %v, want ErrDisabled", err)
	}
	if n := e.scheduledCount(); n != 2 || len(e.deadLetters()) != 0 {
		t.Errorf("%d scheduled, want the two before; dead %v", n, e.deadLetters())
	}
	s, err := e.store.States.Get(t.Context(), "s")
	if err != nil || s.State != store.StateDisabled || !strings.Contains(s.Reason, "121h0m") ||
		!strings.Contains(s.Reason, "500") {
		t.Errorf("state %+v, %v", s, err)
	}

	// Earlier failures do not count after the sink was enabled.
	if _, err := e.store.States.Resume(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	fourth := e.pipeline(&fakeSink{answer: answers(errFar)}, week)
	if err := handleDelivery(t.Context(), fourth, delivery("d4")); err != nil {
		t.Error("disabled again at once: ", err)
	}
}

func TestDisableAfter_OtherConfiguration(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.failingFor(200 * time.Hour)
	p := e.pipeline(&fakeSink{answer: answers(errFar)}, week)
	if err := handleDelivery(t.Context(), p, delivery("d1")); !errors.Is(err, ErrDisabled) {
		t.Fatalf("Handle = %v, want ErrDisabled", err)
	}
	changed := e.pipeline(&fakeSink{answer: answers(errFar)}, func(o *Options) { week(o); o.Fingerprint = "v2" })
	if _, err := changed.WaitEnabled(t.Context()); err != nil || e.remembersFailure() {
		t.Errorf("WaitEnabled = %v, remembered %v", err, e.remembersFailure())
	}
}

func TestDisableAfter_WhatEndsFailures(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		answer error
		want   bool // whether the failure still counts
	}{
		{"success", nil, false},
		{"rejection of one delivery", relay.Permanent(errFar), true},
		{"another failure", errFar, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t)
			p := e.pipeline(&fakeSink{answer: answers(errFar, c.answer)}, week)
			for _, id := range []string{"d1", "d2"} {
				if err := handleDelivery(t.Context(), p, delivery(id)); err != nil {
					t.Fatal(err)
				}
			}
			if got := e.remembersFailure(); got != c.want {
				t.Errorf("remembered %v, want %v", got, c.want)
			}
		})
	}
}

// A rejected delivery is no failure, and without DisableAfter nothing is.
func TestDisableAfter_WhatIsNoFailure(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	rejecting := e.pipeline(&fakeSink{answer: answers(relay.Permanent(errFar))}, week)
	unlimited := e.pipeline(&fakeSink{answer: answers(errFar)}, func(o *Options) { week(o); o.DisableAfter = 0 })
	for _, p := range []*Pipeline{rejecting, unlimited} {
		if err := handleDelivery(t.Context(), p, delivery("d1")); err != nil || e.remembersFailure() {
			t.Errorf("Handle = %v, remembered %v", err, e.remembersFailure())
		}
	}
	e.failingFor(10000 * time.Hour)
	if err := handleDelivery(t.Context(), unlimited, delivery("d2")); err != nil {
		t.Errorf("Handle = %v", err)
	}
}

// A success ends the failures of other nodes: at once for a retry, and after a poll for a fresh delivery.
func TestDisableAfter_SuccessOnOtherNode(t *testing.T) {
	t.Parallel()
	t.Run("retry", func(t *testing.T) {
		e := newEnv(t)
		e.scheduleDue(1)
		e.failingFor(time.Hour)
		e.retries(e.pipeline(&fakeSink{answer: answers(nil)}, week))
		testkit.WaitFor(t, "forgotten", func() bool { return !e.remembersFailure() && e.scheduledCount() == 0 })
	})
	t.Run("fresh", func(t *testing.T) {
		e := newEnv(t)
		e.failingFor(time.Hour)
		p := e.pipeline(&fakeSink{answer: answers(nil)}, week)
		e.retries(p)
		testkit.WaitFor(t, "forgotten", func() bool {
			if err := handleDelivery(t.Context(), p, delivery("d1")); err != nil {
				t.Fatal(err)
			}
			return !e.remembersFailure()
		})
	})
}

// A scheduled delivery whose attempt disables the sink stays scheduled, with its earlier history.
func TestDisableAfter_Retry(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.scheduleDue(1)
	e.failingFor(121 * time.Hour)
	sink := &fakeSink{answer: answers(errFar)}
	p := e.pipeline(sink, func(o *Options) { week(o); o.Schedule.MaxAttempts = 2 })
	e.retries(p)
	testkit.WaitFor(t, "disabled", func() bool { off, _ := p.state.Off(); return off })
	testkit.WaitFor(t, "released", func() bool {
		score, err := e.client.ZScore(t.Context(), "hubrelay:retry:s", "p0").Result()
		return err == nil && score <= float64(time.Now().UnixMilli())
	})
	if len(e.deadLetters()) != 0 || sink.attempts("") != 1 {
		t.Errorf("dead %v after %d attempts", e.deadLetters(), sink.attempts(""))
	}
}

// Many failures cost one request per second. After a success, the next failure is reported again.
func TestFailureTracker_ReportInterval(t *testing.T) {
	t.Parallel()
	cleared := &countingFailures{}
	f := failureTracker{opts: &Options{}, store: cleared}
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		after time.Duration
		over  bool
		want  bool
	}{
		{0, false, true},
		{time.Millisecond, false, false},
		{999 * time.Millisecond, false, false},
		{time.Second, false, true},
		{time.Second, true, true},
	} {
		if c.over {
			f.recordSuccess(t.Context())
			if f.recordSuccess(t.Context()); cleared.clears != 1 {
				t.Errorf("failures were cleared %d times, want once", cleared.clears)
			}
		}
		if got := f.shouldReport(now.Add(c.after), time.Second); got != c.want {
			t.Errorf("after %s: %v", c.after, got)
		}
	}
}

// countingFailures is a failureStore that counts calls of Clear.
type countingFailures struct{ clears int }

func (*countingFailures) Record(context.Context, string) (time.Duration, error) { return 0, nil }

func (c *countingFailures) Clear(context.Context, string) error { c.clears++; return nil }

package pipeline

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// A destination that responds with 429 gets nothing from the whole sink until the time that it named.
func TestCooldown_WholeSink(t *testing.T) {
	t.Parallel()
	for _, rate := range []relay.Rate{{}, perSec(1000)} {
		t.Run(rate.String(), func(t *testing.T) {
			e := newEnv(t)
			const rest = 400 * time.Millisecond
			var refused, first atomic.Int64
			sink := &fakeSink{answer: func(context.Context, relay.Delivery) error {
				now := time.Now().UnixNano()
				if refused.CompareAndSwap(0, now) {
					return relay.RetryAfter(&relay.ResponseError{Status: 429}, rest)
				}
				first.CompareAndSwap(0, now)
				return nil
			}}
			p := e.pipeline(sink, func(o *Options) { o.Rate = rate })
			e.retries(p)
			if err := p.Handle(t.Context(), delivery("d0")); err != nil {
				t.Fatal(err)
			}
			if e.scheduleDue(5); p.DestinationHold().ThrottledUntil.IsZero() {
				t.Error("the sink is not throttled")
			}
			handle(t, p, "f", 20).Wait()
			testkit.WaitFor(
				t,
				"all delivered",
				func() bool { return e.scheduledCount() == 0 && sink.attempts("") == 1+1+5+20 },
			)
			if wait := time.Duration(first.Load() - refused.Load()); wait < rest {
				t.Errorf("the next attempt came after %s, want %s at least", wait, rest)
			}
			testkit.WaitFor(t, "the cooldown has ended", func() bool { return p.DestinationHold().ThrottledUntil.IsZero() })
		})
	}
}

// Without a rate, other nodes follow with their next poll.
func TestCooldown_AllNodesWithoutRate(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	one := e.pipeline(&fakeSink{answer: answers(relay.RetryAfter(&relay.ResponseError{Status: 429}, time.Minute))}, nil)
	if err := one.Handle(t.Context(), delivery("d1")); err != nil {
		t.Fatal(err)
	}
	other := e.pipeline(&fakeSink{answer: answers(nil)}, nil)
	results := e.store.Retries.Poll(t.Context(), []store.PollRequest{other.Poll(false, true)})
	if err := other.Apply(t.Context(), results[0]); err != nil {
		t.Fatal(err)
	}
	until, want := other.DestinationHold().ThrottledUntil, one.DestinationHold().ThrottledUntil
	if diff := until.Sub(want).Abs(); until.IsZero() || diff > time.Second {
		t.Errorf("another node is throttled until %s, want %s", until, want)
	}
	// The times of a former rate are no cooldown.
	former := store.RateLimit{Rate: relay.Rate{Count: 1, Per: time.Hour}, Burst: 5}
	if _, err := e.store.Rates.Take(t.Context(), "former", former, 5); err != nil {
		t.Fatal(err)
	}
	request := store.PollRequest{Sink: "former", WithState: true, CooldownName: "former", Lease: time.Minute}
	if r := e.store.Retries.Poll(t.Context(), []store.PollRequest{request})[0]; r.Cooldown != 0 || r.Err != nil {
		t.Errorf("a sink without its former rate: got a cooldown of %s, %v, want none", r.Cooldown, r.Err)
	}
}

// Other nodes follow through Redis if the sink has a rate.
func TestCooldown_AllNodes(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	limited := func(o *Options) { o.Rate = perSec(100) }
	one := e.pipeline(
		&fakeSink{answer: answers(relay.RetryAfter(&relay.ResponseError{Status: 503}, time.Minute))},
		limited,
	)
	if err := one.Handle(t.Context(), delivery("d1")); err != nil {
		t.Fatal(err)
	}
	sink := &fakeSink{answer: answers(nil)}
	other := e.pipeline(sink, limited)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- other.Handle(ctx, delivery("d2")) }()
	testkit.WaitFor(t, "the node knows the cooldown", func() bool { return !other.DestinationHold().ThrottledUntil.IsZero() })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || sink.attempts("") != 0 {
		t.Errorf("Handle = %v after %d attempts", err, sink.attempts(""))
	}
}

// An operator ends a pause that the destination asked for, on all nodes, for fresh events and retries.
func TestCooldown_EndsWithResume(t *testing.T) {
	t.Parallel()
	for _, rate := range []relay.Rate{{}, perSec(100)} {
		t.Run(rate.String(), func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			limited := func(o *Options) { o.Rate = rate }
			one := e.pipeline(&fakeSink{answer: answers(relay.RetryAfter(&relay.ResponseError{Status: 503}, time.Hour), nil)}, limited)
			if err := one.Handle(t.Context(), delivery("d1")); err != nil {
				t.Fatal(err)
			}
			sink := &fakeSink{answer: answers(nil)}
			other := e.pipeline(sink, limited)
			e.retries(one)
			e.retries(other)
			isThrottled := func() bool { return !other.DestinationHold().ThrottledUntil.IsZero() }
			if !rate.Limited() {
				testkit.WaitFor(t, "the node follows with a poll", isThrottled)
			}
			waiting := handle(t, other, "f", 5)
			testkit.WaitFor(t, "the node follows", isThrottled)
			if err := one.EndStoredCooldown(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := e.store.States.Resume(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			waiting.Wait()
			for _, p := range []*Pipeline{one, other} {
				testkit.WaitFor(t, "the cooldown has ended", func() bool { return p.DestinationHold().ThrottledUntil.IsZero() })
			}
			if n := sink.attempts(""); n != 5 {
				t.Errorf("%d attempts, want 5", n)
			}
		})
	}
}

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
			if err := handleDelivery(t.Context(), p, delivery("d0")); err != nil {
				t.Fatal(err)
			}
			isThrottled := !p.DestinationHold().ThrottledUntil.IsZero()
			if !isThrottled && time.Now().UnixNano()-refused.Load() < int64(rest) {
				t.Error("the sink is not throttled")
			}
			e.scheduleDue(5)
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
	one := e.pipeline(&fakeSink{answer: answers(relay.RetryAfter(&relay.ResponseError{Status: 429}, time.Hour))}, nil)
	if err := handleDelivery(t.Context(), one, delivery("d1")); err != nil {
		t.Fatal(err)
	}
	other := e.pipeline(&fakeSink{answer: answers(nil)}, nil)
	results := e.store.Retries.Poll(t.Context(), []store.PollRequest{other.Poll(false, true)})
	if err := other.Apply(t.Context(), results[0]); err != nil {
		t.Fatal(err)
	}
	until, want := other.DestinationHold().ThrottledUntil, one.DestinationHold().ThrottledUntil
	if diff := until.Sub(want).Abs(); until.IsZero() || diff > 10*time.Minute {
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
		&fakeSink{answer: answers(relay.RetryAfter(&relay.ResponseError{Status: 503}, time.Hour))},
		limited,
	)
	if err := handleDelivery(t.Context(), one, delivery("d1")); err != nil {
		t.Fatal(err)
	}
	sink := &fakeSink{answer: answers(nil)}
	other := e.pipeline(sink, limited)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- handleDelivery(ctx, other, delivery("d2")) }()
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
			if err := handleDelivery(t.Context(), one, delivery("d1")); err != nil {
				t.Fatal(err)
			}
			sink := &fakeSink{answer: answers(nil)}
			other := e.pipeline(sink, limited)
			e.retries(one)
			e.retries(other)
			e.scheduleDue(3)
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
			testkit.WaitFor(t, "the due retries are attempted", func() bool { return e.scheduledCount() <= 1 }) // d1 waits an hour
		})
	}
}

// A poll that has read the cooldown before the end must not start it again. Later cooldowns of a resumed sink have effect.
func TestCooldown_PollBeforeResume(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.pipeline(&fakeSink{answer: answers(relay.RetryAfter(&relay.ResponseError{Status: 503}, time.Hour))}, nil)
	isThrottled := func() bool { return !p.DestinationHold().ThrottledUntil.IsZero() }
	resume := func() {
		t.Helper()
		if err := errors.Join(p.EndStoredCooldown(t.Context()), e.resume(), p.Refresh(t.Context())); err != nil || isThrottled() {
			t.Fatalf("the sink is throttled after resume (%v)", err)
		}
	}
	poll := func(between func()) {
		t.Helper()
		results := e.store.Retries.Poll(t.Context(), []store.PollRequest{p.Poll(true, true)})
		between()
		if err := p.Apply(t.Context(), results[0]); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := handleDelivery(t.Context(), p, delivery("d1")); err != nil || !isThrottled() {
			t.Fatalf("the sink is not throttled (%v)", err)
		}
		poll(func() {})
		if !isThrottled() {
			t.Fatal("a poll has ended the cooldown")
		}
		poll(resume)
		if poll(func() {}); isThrottled() {
			t.Fatal("an old poll has started the cooldown again")
		}
	}
}

// In a cluster, a poll can read the cooldown before the end and the state after it.
func TestCooldown_PollReadsOldCooldown(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.pipeline(&fakeSink{answer: answers(relay.RetryAfter(&relay.ResponseError{Status: 503}, time.Hour))}, nil)
	if err := errors.Join(p.Refresh(t.Context()), handleDelivery(t.Context(), p, delivery("d1"))); err != nil {
		t.Fatal(err)
	}
	poll := func() (store.PollRequest, store.PollResult) {
		q := p.Poll(true, true)
		return q, e.store.Retries.Poll(t.Context(), []store.PollRequest{q})[0]
	}
	_, before := poll()
	if err := errors.Join(p.Apply(t.Context(), before), p.EndStoredCooldown(t.Context()), e.resume()); err != nil {
		t.Fatal(err)
	}
	_, after := poll()
	after.Cooldown = before.Cooldown
	if err := p.Apply(t.Context(), after); err != nil || !p.DestinationHold().ThrottledUntil.IsZero() {
		t.Errorf("the sink is throttled after resume (%v)", err)
	}
}

// A digest of events above the rate waits for the end of a pause. It must not wait longer than that.
func TestCooldown_DigestsEndWithResume(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	busy := relay.RetryAfter(&relay.ResponseError{Status: 429}, time.Hour)
	sink := &fakeSink{answer: answers(busy, nil)}
	p := e.pipeline(sink, func(o *Options) { o.Rate, o.Burst, o.DigestOverRate = perSec(10), 1, true })
	e.retries(p)
	for i := range 2 {
		if err := handleDelivery(t.Context(), p, event(i, "a.b", "h1")); err != nil {
			t.Fatal(err)
		}
	}
	open, err := e.store.Digests.List(t.Context(), "s", 0, 10)
	if err != nil || len(open) != 1 || time.Until(open[0].SealAt) < time.Minute {
		t.Fatalf("got digests %v, %v, want one that waits for the end of the pause", open, err)
	}
	if err := errors.Join(p.EndStoredCooldown(t.Context()), e.resume(), p.Refresh(t.Context())); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForValue(t, "the digest is delivered", 2, func() int { return sink.attempts("") })
}

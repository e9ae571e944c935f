package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func TestBreakerSteps(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	b := newBreaker(func() time.Time { return now })
	var turns []bool
	b.onStateChange = func(open bool, _ error) { turns = append(turns, open) }
	attempt := func(err error) (probe bool) {
		t.Helper()
		probe, ok := b.allow()
		if !ok {
			t.Fatal("no attempt may begin")
		}
		b.record(probe, true, err)
		return probe
	}
	refused := func() bool { _, ok := b.allow(); return !ok }

	for range failureThreshold - 1 {
		attempt(errFar)
	}
	attempt(nil) // a success in between starts the count anew
	for range failureThreshold - 1 {
		attempt(errFar)
	}
	if refused() {
		t.Fatal("open too early")
	}
	attempt(errFar)
	for pause := time.Second; pause <= 4*time.Minute; pause *= 2 {
		pause := min(pause, time.Minute)
		if most, wait := b.available(16); most != 0 || wait != pause || !refused() {
			t.Fatalf("room for %d, pause %s, want %s", most, wait, pause)
		}
		now = now.Add(pause)
		if most, _ := b.available(16); most != 1 {
			t.Fatalf("room for %d, want for the probe", most)
		}
		if probe, ok := b.allow(); !probe || !ok || !refused() {
			t.Fatal("want one probe at a time")
		}
		b.record(true, true, errFar)
	}
	now = now.Add(time.Minute)
	probe, _ := b.allow()
	b.record(probe, false, context.Canceled) // broken off: another may try at once
	if !attempt(nil) || refused() {
		t.Error("a good probe closes it")
	}
	if most, _ := b.available(16); most != 16 {
		t.Errorf("room for %d, want 16", most)
	}
	for range failureThreshold {
		attempt(errFar)
	}
	if _, wait := b.available(1); wait != time.Second {
		t.Errorf("the pauses begin at %s again, want 1s", wait)
	}
	if got := fmt.Sprint(turns); got != "[true false true]" {
		t.Errorf("turned %s", got)
	}
}

// Somebody who knows that the destination was mended need not wait for the pause.
func TestBreakerHurried(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	b := newBreaker(func() time.Time { return now })
	var changes []time.Duration
	b.onAvailable = func(wait time.Duration) { changes = append(changes, wait) }
	b.probeNow()
	if !b.nextProbeAt().IsZero() || len(changes) != 0 {
		t.Error("it is closed, and there is nothing to hurry")
	}
	for range failureThreshold {
		b.record(false, true, errFar)
	}
	for range 3 {
		now = now.Add(time.Minute)
		b.allow()
		b.record(true, true, errFar)
	}
	if got := b.nextProbeAt().Sub(now); got != 8*time.Second {
		t.Errorf("the next probe is in %s", got)
	}
	waited := make(chan error, 1)
	waiting := make(chan struct{})
	go func() { close(waiting); waited <- b.wait(t.Context(), nil) }()
	<-waiting
	b.probeNow()
	if err := <-waited; err != nil || changes[len(changes)-1] != 0 {
		t.Errorf("wait returned %v, changes %v", err, changes)
	}
	probe, ok := b.allow()
	if !probe || !ok {
		t.Fatal("no probe may begin")
	}
	b.probeNow() // changes nothing for the one that is under way
	if _, ok := b.allow(); ok {
		t.Error("two probes at once")
	}
	b.record(true, true, errFar)
	if got := b.nextProbeAt().Sub(now); got != 2*time.Second {
		t.Errorf("the pauses begin with %s", got)
	}
}

func TestWhatIsDown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("connection refused"), true},
		{context.DeadlineExceeded, true},
		{fmt.Errorf("deliver: %w", &relay.ResponseError{Status: 503}), true},
		{relay.RetryAfter(&relay.ResponseError{Status: 429}, time.Second), true},
		{&relay.ResponseError{Status: 404}, false},
		{relay.Permanent(&relay.ResponseError{Status: 400}), false},
		{relay.Gone(&relay.ResponseError{Status: 410}), false},
	} {
		if got := indicatesOutage(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

// While the destination is down, fresh deliveries wait without an attempt or a slot, and all come through afterwards.
func TestBreakerHoldsAndLetsGo(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var up atomic.Bool
	sink := &fakeSink{answer: func(context.Context, relay.Delivery) error {
		if up.Load() {
			return nil
		}
		return errFar
	}}
	obs := &counting{}
	p := e.pipeline(sink, func(o *Options) {
		o.Concurrency, o.Observer = 2, obs
		o.Schedule = Schedule{Delays: []time.Duration{50 * time.Millisecond}, MaxAttempts: 100}
	})
	p.admission.breaker.initialOpenTime = 20 * time.Millisecond
	e.retries(p)
	for i := range failureThreshold - 1 {
		if err := p.Handle(t.Context(), delivery(fmt.Sprint("a", i))); err != nil {
			t.Fatal(err)
		}
	}
	testkit.WaitFor(t, "open", func() bool { return obs.get("broken true") == 1 })
	before := sink.attempts("")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := p.Handle(t.Context(), delivery(fmt.Sprint("b", i))); err != nil {
				t.Error(err)
			}
		})
	}
	testkit.WaitFor(t, "some probes", func() bool { return sink.attempts("") >= before+3 })
	if n := sink.attempts(""); n > before+6 {
		t.Errorf("%d attempts while it was open", n-before)
	}
	up.Store(true)
	wg.Wait()
	testkit.WaitFor(t, "all delivered", func() bool { return e.parkedCount() == 0 })
	if obs.get("broken true") != 1 || obs.get("broken false") != 2 || len(e.deadLetters()) != 0 {
		t.Errorf("observed %v, dead %v", obs.n, e.deadLetters())
	}
}

// Parked deliveries alone find out that the destination is up again, and lose no attempt while it is down.
func TestBreakerProbesWithRetries(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const n = 40
	e.park(n)
	var down atomic.Int64
	sink := &fakeSink{answer: func(context.Context, relay.Delivery) error {
		if down.Add(1) <= failureThreshold+4 {
			return errFar
		}
		return nil
	}}
	p := e.pipeline(sink, func(o *Options) { o.Concurrency = 2 })
	p.admission.breaker.initialOpenTime = 5 * time.Millisecond
	e.retries(p)
	testkit.WaitFor(t, "all delivered", func() bool { return e.parkedCount() == 0 })
	if got := sink.attempts(""); got != n+failureThreshold+4 || len(e.deadLetters()) != 0 {
		t.Errorf("%d attempts, dead %v", got, e.deadLetters())
	}
}

// What waits for a destination that is down holds up neither the end nor a change of the sink's state.
func TestBreakerLetsGoAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		end  func(e *env, p *Pipeline, stop func())
		want error
	}{
		{"stop", func(_ *env, _ *Pipeline, stop func()) { stop() }, context.Canceled},
		{"pause", func(e *env, _ *Pipeline, _ func()) {
			if err := e.store.States.Pause(context.Background(), "s"); err != nil {
				e.t.Error(err)
			}
		}, ErrDisabled},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t)
			sink := &fakeSink{answer: answers(errFar)}
			p := e.pipeline(sink, func(o *Options) { o.Schedule = Schedule{Delays: []time.Duration{time.Hour}} })
			p.admission.breaker.initialOpenTime = time.Hour
			stop := e.retries(p)
			for i := range failureThreshold {
				if err := p.Handle(t.Context(), delivery(fmt.Sprint("a", i))); err != nil {
					t.Fatal(err)
				}
			}
			done := make(chan error, 1)
			go func() { done <- p.Handle(t.Context(), delivery("held")) }()
			c.end(e, p, stop)
			if err := <-done; !errors.Is(err, c.want) || sink.attempts("held") != 0 {
				t.Errorf("Handle = %v after %d attempts, want %v after none", err, sink.attempts("held"), c.want)
			}
		})
	}
}

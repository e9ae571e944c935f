package pipeline

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
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// While the destination fails, fresh deliveries wait without an attempt or a slot. All are delivered later.
func TestBreaker_FreshDeliveriesWait(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var up atomic.Bool
	sink := &fakeSink{answer: func(context.Context, relay.Delivery) error {
		if up.Load() {
			return nil
		}
		return errFar
	}}
	p := e.pipeline(sink, func(o *Options) {
		o.Concurrency, o.probeDelay = 2, 20*time.Millisecond
		o.Schedule = Schedule{Delays: []time.Duration{50 * time.Millisecond}, MaxAttempts: 100}
	})
	e.retries(p)
	for i := range admission.FailureThreshold - 1 {
		if err := p.Handle(t.Context(), delivery(fmt.Sprint("a", i))); err != nil {
			t.Fatal(err)
		}
	}
	testkit.WaitFor(t, "open", func() bool { return !p.DestinationHold().ProbeAt.IsZero() })
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
	testkit.WaitForValue(t, "all delivered", 0, func() int64 { return e.scheduledCount() })
	if hold := p.DestinationHold(); !hold.ProbeAt.IsZero() || len(e.deadLetters()) != 0 {
		t.Errorf("got %+v, dead %v, want a closed circuit breaker and no dead letters", hold, e.deadLetters())
	}
}

// If the destination fails for the events of one account, those of others are delivered, and nothing is lost.
func TestBreaker_FailsForOneAccount(t *testing.T) {
	t.Parallel()
	const n = 50
	for _, ordering := range []store.Ordering{store.OrderingNone, store.OrderingHub} {
		t.Run(string(ordering), func(t *testing.T) {
			e := newEnv(t)
			sink := &fakeSink{answer: func(_ context.Context, d relay.Delivery) error {
				if d.Notifications[0].Account == "bad" {
					return errFar
				}
				return nil
			}}
			p := e.pipeline(sink, func(o *Options) {
				o.Concurrency, o.probeDelay, o.Ordering = 2, time.Hour, ordering
				o.Schedule = Schedule{Delays: []time.Duration{time.Hour}}
				o.HasOtherAccounts = func(_ context.Context, account string) (bool, error) { return account == "bad", nil }
			})
			queue := make(chan relay.Delivery, n+1)
			for i := range n {
				d := delivery(fmt.Sprint("bad", i))
				d.Notifications[0].Account, d.Notifications[0].Hub = "bad", fmt.Sprint("hub", i%20)
				queue <- d
			}
			queue <- delivery("good")
			close(queue)
			feed := func(ctx context.Context) error {
				var wg sync.WaitGroup
				for range 4 { // the read-ahead of a queue
					wg.Go(func() {
						for d := range queue {
							if err := p.Handle(ctx, d); err != nil {
								t.Errorf("%s: %v", d.ID, err)
							}
						}
					})
				}
				wg.Wait()
				return nil
			}
			if ordering.IsOrdered() {
				if err := p.RunAsLeader(t.Context(), t.Context(), feed); err != nil {
					t.Fatal(err)
				}
			} else if err := feed(t.Context()); err != nil {
				t.Fatal(err)
			}
			if sink.attempts("good") != 1 || e.scheduledCount() != n {
				t.Errorf("%d attempts of the other account, %d scheduled, want %d", sink.attempts("good"), e.scheduledCount(), n)
			}
			if got := sink.attempts("") - 1; got > admission.FailureThreshold+4 {
				t.Errorf("%d attempts of the account that fails", got)
			}
		})
	}
}

// Retries alone detect that the destination responds again, and use up no attempts while it fails.
func TestBreaker_ProbesWithRetries(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const n = 40
	e.scheduleDue(n)
	var down atomic.Int64
	sink := &fakeSink{answer: func(context.Context, relay.Delivery) error {
		if down.Add(1) <= admission.FailureThreshold+4 {
			return errFar
		}
		return nil
	}}
	p := e.pipeline(sink, func(o *Options) { o.Concurrency, o.probeDelay = 2, 5*time.Millisecond })
	e.retries(p)
	testkit.WaitForValue(t, "all delivered", 0, func() int64 { return e.scheduledCount() })
	if got := sink.attempts(""); got != n+admission.FailureThreshold+4 || len(e.deadLetters()) != 0 {
		t.Errorf("%d attempts, dead %v", got, e.deadLetters())
	}
}

// A delivery that waits for the destination delays neither a stop nor a change of the state.
func TestBreaker_WaitEnds(t *testing.T) {
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
			p := e.pipeline(sink, func(o *Options) {
				o.Schedule, o.probeDelay = Schedule{Delays: []time.Duration{time.Hour}}, time.Hour
			})
			stop := e.retries(p)
			for i := range admission.FailureThreshold {
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

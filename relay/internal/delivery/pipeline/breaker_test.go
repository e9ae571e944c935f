package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
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
		if err := handleDelivery(t.Context(), p, delivery(fmt.Sprint("a", i))); err != nil {
			t.Fatal(err)
		}
	}
	testkit.WaitFor(t, "open", func() bool { return !p.DestinationHold().ProbeAt.IsZero() })
	before := sink.attempts("")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := handleDelivery(t.Context(), p, delivery(fmt.Sprint("b", i))); err != nil {
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

// failFor returns a sink that fails for accounts whose name starts with bad, and for the first attempt of flaky deliveries.
func failFor() *fakeSink {
	return &fakeSink{answer: func(_ context.Context, d relay.Delivery) error {
		if strings.HasPrefix(d.Notifications[0].Account, "bad") || strings.HasPrefix(d.ID, "flaky") && d.Attempt == 1 {
			return errFar
		}
		return nil
	}}
}

// feed passes deliveries to a pipeline as its queue does, which reads a few ahead.
func feed(t *testing.T, p *Pipeline, list []relay.Delivery) {
	t.Helper()
	queue := make(chan relay.Delivery, len(list))
	for _, d := range list {
		queue <- d
	}
	close(queue)
	work := func(ctx context.Context) error {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for d := range queue {
					if err := handleDelivery(ctx, p, d); err != nil {
						t.Errorf("%s: %v", d.ID, err)
					}
				}
			})
		}
		wg.Wait()
		return nil
	}
	err := error(nil)
	if p.Ordered() {
		err = p.RunAsLeader(t.Context(), t.Context(), work)
	} else {
		err = work(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// badDeliveries returns deliveries of a number of accounts in turns.
func badDeliveries(count, accounts int) []relay.Delivery {
	list := make([]relay.Delivery, count)
	for i := range list {
		list[i] = delivery(fmt.Sprint("bad", i))
		n := &list[i].Notifications[0]
		n.Account, n.Hub = fmt.Sprint("bad", i%accounts), fmt.Sprint("hub", i%20)
	}
	return list
}

// If the destination fails for some accounts, the events of others are delivered, and nothing is lost.
func TestBreaker_FailsForSomeAccounts(t *testing.T) {
	t.Parallel()
	const n = 50
	for _, tt := range []struct {
		ordering store.Ordering
		accounts int
	}{{store.OrderingNone, 1}, {store.OrderingNone, 2}, {store.OrderingNone, 20}, {store.OrderingHub, 1}, {store.OrderingHub, 20}} {
		t.Run(fmt.Sprint(tt.ordering, tt.accounts), func(t *testing.T) {
			e, sink := newEnv(t), failFor()
			p := e.pipeline(sink, func(o *Options) {
				o.Concurrency, o.probeDelay, o.Ordering = 2, time.Hour, tt.ordering
				o.Schedule = Schedule{Delays: []time.Duration{time.Hour}}
				o.HasOtherAccounts = func(_ context.Context, accounts []string) (bool, error) {
					return !slices.Contains(accounts, "good"), nil
				}
			})
			good := delivery("good")
			good.Notifications[0].Account = "good"
			feed(t, p, append(badDeliveries(n, tt.accounts), good))
			if sink.attempts("good") != 1 || e.scheduledCount() != n {
				t.Errorf("%d attempts of the other account, %d scheduled, want %d", sink.attempts("good"), e.scheduledCount(), n)
			}
			// Each account has one more probe. Attempts that are running then also end.
			if got, want := sink.attempts("")-1, admission.FailureThreshold+tt.accounts+2*p.opts.Concurrency; got > want {
				t.Errorf("%d attempts of the accounts that fail, want at most %d", got, want)
			}
		})
	}
}

// The retries of an account that fails delay neither retries of other accounts nor new deliveries.
func TestBreaker_RetriesOfOthers(t *testing.T) {
	t.Parallel()
	const n = 200
	e, sink := newEnv(t), failFor()
	p := e.pipeline(sink, func(o *Options) {
		o.Concurrency, o.probeDelay = 2, time.Hour
		o.Schedule = Schedule{Delays: []time.Duration{time.Second}, MaxAttempts: 100}
		o.HasOtherAccounts = func(context.Context, []string) (bool, error) { return true, nil }
	})
	good, flaky := delivery("good"), delivery("flaky")
	// Otherwise the failure of flaky would end the early probe of good, and the next probe is in an hour.
	flaky.Notifications[0].Account = "flaky"
	feed(t, p, append(badDeliveries(n, 1), good, flaky))
	e.makeAllDue()
	e.retries(p)
	testkit.WaitForValue(t, "the retry of another account", 2, func() int { return sink.attempts("flaky") })
	testkit.WaitForValue(t, "only those that fail to be scheduled", n, e.scheduledCount)
	if hold := p.DestinationHold(); !hold.ProbeAt.IsZero() || !slices.Equal(hold.FailingAccounts, []string{"bad0"}) {
		t.Errorf("got %+v, want only the circuit breaker of an account to be open", hold)
	}
}

// A delivery that is postponed until it reaches its maximum age becomes a dead letter.
func TestBreaker_PostponedReachMaxAge(t *testing.T) {
	t.Parallel()
	const n = 30
	e, sink := newEnv(t), failFor()
	var late atomic.Bool
	p := e.pipeline(sink, func(o *Options) {
		o.Concurrency, o.probeDelay = 2, time.Hour
		o.Schedule = Schedule{Delays: []time.Duration{time.Second}, MaxAttempts: 100, MaxAge: 20 * time.Second}
		o.HasOtherAccounts = func(context.Context, []string) (bool, error) { return true, nil }
		o.Now = func() time.Time {
			if late.Load() {
				return time.Now().Add(30 * time.Second) // before the next probe
			}
			return time.Now()
		}
	})
	feed(t, p, append(badDeliveries(n, 1), delivery("good")))
	attempts := sink.attempts("")
	late.Store(true)
	e.makeAllDue()
	e.retries(p)
	testkit.WaitForValue(t, "none scheduled", 0, e.scheduledCount)
	dead := e.deadLetters()
	if len(dead) != n || sink.attempts("") != attempts {
		t.Fatalf("%d dead letters after %d attempts, want %d after %d", len(dead), sink.attempts(""), n, attempts)
	}
	if reason := fmt.Sprint(dead[n-1]["reason"]); reason != "exhausted: it reached retry.max_age while it was postponed" {
		t.Errorf("reason is %q", reason)
	}
}

// Accounts for which the destination recovers are found among the retries of others, without new events.
func TestBreaker_RecoversForRetries(t *testing.T) {
	t.Parallel()
	const n = 300
	e := newEnv(t)
	var recovered atomic.Bool
	sink := &fakeSink{answer: func(_ context.Context, d relay.Delivery) error {
		if d.Notifications[0].Account == "good" && recovered.Load() {
			return nil
		}
		return errFar
	}}
	p := e.pipeline(sink, func(o *Options) {
		o.Concurrency, o.probeDelay = 4, 20*time.Millisecond
		o.Schedule = Schedule{Delays: []time.Duration{time.Millisecond}, MaxAttempts: 1000}
		o.HasOtherAccounts = func(context.Context, []string) (bool, error) { return true, nil }
	})
	var list []relay.Delivery
	for i, d := range badDeliveries(n, 30) {
		if i%60 == 59 {
			d.Notifications[0].Account, d.Notifications[0].Hub = "good", "hub of good"
		}
		list = append(list, d)
	}
	feed(t, p, list)
	recovered.Store(true)
	e.makeAllDue()
	e.retries(p)
	testkit.WaitForValue(t, "only those that fail to be scheduled", n*59/60, e.scheduledCount)
}

// A batch whose account is not known yet waits like all others.
func TestBreaker_BatchesWait(t *testing.T) {
	t.Parallel()
	for _, byAccount := range []bool{false, true} {
		e, sink := newEnv(t), &fakeSink{answer: answers(errFar)}
		p := e.pipeline(sink, func(o *Options) {
			o.Concurrency, o.probeDelay = 2, time.Hour
			o.Batch = Batch{Wait: time.Millisecond, Max: 2, ByAccount: byAccount}
			o.Schedule = Schedule{Delays: []time.Duration{time.Hour}}
			o.HasOtherAccounts = func(context.Context, []string) (bool, error) { return true, nil }
		})
		handle := func(ctx context.Context, i int) error {
			d := event(i, "a.b", "h1")
			d.Notifications[0].Account = "acme"
			return handleDelivery(ctx, p, d)
		}
		for i := range admission.FailureThreshold {
			if err := handle(t.Context(), i); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			if err := handle(ctx, 1000+i); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("by account %t: a delivery ended with %v", byAccount, err)
			}
			cancel()
		}
		if got := sink.attempts(""); got != admission.FailureThreshold {
			t.Errorf("by account %t: %d attempts", byAccount, got)
		}
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
				if err := handleDelivery(t.Context(), p, delivery(fmt.Sprint("a", i))); err != nil {
					t.Fatal(err)
				}
			}
			done := make(chan error, 1)
			go func() { done <- handleDelivery(t.Context(), p, delivery("held")) }()
			c.end(e, p, stop)
			if err := <-done; !errors.Is(err, c.want) || sink.attempts("held") != 0 {
				t.Errorf("Handle = %v after %d attempts, want %v after none", err, sink.attempts("held"), c.want)
			}
		})
	}
}

// A delivery that the sink could not attempt, for example because its plugin restarts, does not open the circuit breaker.
func TestBreaker_IgnoresPostponedDeliveries(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(relay.Postpone(errors.New("the plugin is not running"), time.Hour))}
	p := e.pipeline(sink, nil)
	for i := range 2 * admission.FailureThreshold {
		if err := handleDelivery(t.Context(), p, delivery(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	if hold := p.DestinationHold(); !hold.ProbeAt.IsZero() || len(hold.FailingAccounts) > 0 {
		t.Errorf("got %+v, want a closed circuit breaker", hold)
	}
}

package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// Many postponed deliveries become due more slowly, because each claim has a cost.
func TestPostponer_PostponedDelay(t *testing.T) {
	t.Parallel()
	p := newEnv(t).pipeline(failFor(), func(o *Options) { o.Random = func() float64 { return 0.5 } })
	postponer := &postponer{opts: &p.opts, admission: p.admission}
	for scheduled, want := range map[int64]time.Duration{
		0: 10 * time.Second, 2500: 30 * time.Second, 5000: time.Minute, 10_000: 2 * time.Minute, 50_000: 10 * time.Minute, 1_000_000: 10 * time.Minute,
	} {
		p.admission.SetDepth(scheduled, 0)
		if got := postponer.postponedDelay(); got != want {
			t.Errorf("%d scheduled: got %s, want %s", scheduled, got, want)
		}
	}
}

// When the destination recovers for an account, its postponed deliveries are due at once.
func TestPostponer_MakesDue(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var up atomic.Bool
	sink := &fakeSink{answer: func(_ context.Context, d relay.Delivery) error {
		if strings.HasPrefix(d.Notifications[0].Account, "bad") && !up.Load() {
			return errFar
		}
		return nil
	}}
	p := e.pipeline(sink, func(o *Options) {
		o.Concurrency, o.Schedule = 2, Schedule{Delays: []time.Duration{time.Hour}}
		o.HasOtherAccounts = func(_ context.Context, accounts []string) (bool, error) {
			return !slices.Contains(accounts, "good"), nil
		}
	})
	bad, good := badDeliveries(1000, 1), delivery("good")
	good.Notifications[0].Account = "good"
	feed(t, p, append(bad[:50:50], good))
	failed := int64(sink.attempts("") - 1)
	if e.scheduledCount() != 50 || failed < 10 || failed > 40 {
		t.Fatalf("%d are scheduled, %d of them after an attempt", e.scheduledCount(), failed)
	}
	up.Store(true)
	for _, d := range bad[50:] {
		if err := handleDelivery(t.Context(), p, d); err != nil {
			t.Fatal(err)
		}
		if sink.attempts(d.ID) > 0 {
			break
		}
	}
	postponed := e.scheduledCount() - failed
	if due := int64(len(e.poll(2000, time.Minute).Claims)); due != postponed || due == 0 {
		t.Errorf("%d deliveries are due, want %d", due, postponed)
	}
}

// A delivery is due at once if the destination recovers while the delivery is being postponed.
func TestPostponer_MakesDueIfRecovered(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.pipeline(failFor(), nil) // works for all accounts
	d := delivery("d1")
	it := &Item{Delivery: d, Origin: p.queue}
	it.Permit.Account = admission.NewAccount(d.Notifications[0].Account)
	if err := p.postponer.postpone(t.Context(), it); err != nil {
		t.Fatal(err)
	}
	if due := len(e.poll(10, time.Minute).Claims); due != 1 {
		t.Errorf("%d deliveries are due, want the one that was postponed", due)
	}
}

// When the destination recovers, the deliveries that failed with it are due at once. With ordering, others wait for them.
func TestPostponer_MakesFailedDue(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var up atomic.Bool
	sink := &fakeSink{answer: func(_ context.Context, d relay.Delivery) error {
		switch {
		case d.ID == "limited":
			return relay.RetryAfter(errFar, time.Hour)
		case d.ID == "busy":
			return &relay.ResponseError{Status: 404}
		case up.Load():
			return nil
		}
		return errFar
	}}
	p := e.pipeline(sink, func(o *Options) { o.Schedule = Schedule{Delays: slices.Repeat([]time.Duration{time.Hour}, 3)} })
	feed(t, p, []relay.Delivery{delivery("busy")})
	list := []relay.Delivery{delivery("limited")}
	for i := range 10 {
		list = append(list, delivery(fmt.Sprint("failed ", i)))
	}
	feed(t, p, list)
	if p.DestinationHold().ProbeAt.IsZero() {
		t.Fatal("the destination is not down")
	}
	up.Store(true)
	if err := handleDelivery(t.Context(), p, delivery("probe")); err != nil {
		t.Fatal(err)
	}
	if due := len(e.poll(2000, time.Minute).Claims); due != 10 {
		t.Errorf("%d deliveries are due, want the 10 that failed with the destination", due)
	}
}

// A destination that often fails and recovers must not use up the schedule, so only the first failures are remembered.
func TestPostponer_RemembersFirstFailures(t *testing.T) {
	t.Parallel()
	for delays, want := range map[int]int{2: 0, 3: 1, 8: 2, 9: maxEarlyRetries, 30: maxEarlyRetries} {
		p := newEnv(t).pipeline(failFor(), func(o *Options) {
			o.Schedule = Schedule{Delays: slices.Repeat([]time.Duration{time.Hour}, delays)}
		}).postponer
		for attempt := range delays {
			it := &Item{Delivery: delivery(fmt.Sprint(attempt)), Record: &store.Record{AttemptCount: attempt + 1}}
			p.rememberFailed(it, time.Hour)
		}
		if got := len(p.remembered); got != want {
			t.Errorf("%d delays: %d failures are remembered, want %d", delays, got, want)
		}
	}
}

// Deliveries that another node has probably claimed make room for others.
func TestPostponer_ForgetsDueDeliveries(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := newEnv(t).pipeline(failFor(), func(o *Options) { o.Now = func() time.Time { return now } }).postponer
	for i := range maxRemembered {
		p.rememberDelivery(fmt.Sprint(i), admission.NewAccount("a"), time.Minute)
	}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, maxRemembered}, {2 * time.Minute, 1}} {
		now = now.Add(step.after)
		p.rememberDelivery("new", admission.NewAccount("a"), time.Minute)
		if got := len(p.remembered); got != step.want {
			t.Errorf("after %s: %d deliveries are remembered, want %d", step.after, got, step.want)
		}
	}
}

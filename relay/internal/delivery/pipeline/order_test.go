package pipeline

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

func TestOrder_Failures(t *testing.T) {
	t.Parallel()
	for _, by := range []store.Ordering{store.OrderingHub, store.OrderingContainer} {
		t.Run(string(by), func(t *testing.T) {
			e := newEnv(t)
			const hubs, each = 4, 200
			var got successes
			q := newQueue(hubs, each)
			e.lead(e.pipeline(got.around(flaky), ordered(by)), q)
			testkit.WaitFor(
				t,
				"everything arrived",
				func() bool { return got.count() >= hubs*each && q.length() == 0 && e.idle() },
			)
			got.check(t, hubs, each, 0)
			if got.both > 0 {
				t.Errorf("two deliveries with one key were in flight %d times", got.both)
			}
		})
	}
}

// A delivery that waits for hours blocks only its own key, on all nodes.
func TestOrder_ScheduledDeliveryBlocksKey(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const hubs, each = 4, 200
	var got successes
	var mended bool
	sink := got.around(func(ctx context.Context, d relay.Delivery) error {
		got.mu.Lock()
		defer got.mu.Unlock()
		if d.ID == "hub0-000010" && !mended {
			return relay.RetryAfter(errFar, time.Hour)
		}
		return nil
	})
	q := newQueue(hubs, each)
	stop, _ := e.lead(e.pipeline(sink, ordered(store.OrderingHub)), q)
	const held = each - 10
	testkit.WaitFor(t, "the others arrived", func() bool { return got.count() == hubs*each-held && q.length() == 0 })
	stop()
	q.add("hub0", each, each+5)
	next := e.pipeline(sink, ordered(store.OrderingHub))
	e.lead(next, q)
	testkit.WaitFor(
		t,
		"what is new is held back too",
		func() bool { return q.length() == 0 && e.scheduledCount() == held+5 },
	)
	if n := len(got.of("hub0")); n != 10 {
		t.Fatalf("%d of the key arrived, want the 10 before the one that waits", n)
	}
	e.client.ZAddXX(t.Context(), "hubrelay:retry:s", redis.Z{Score: 1, Member: "hub0-000010"})
	got.mu.Lock()
	mended = true
	got.mu.Unlock()
	next.opts.Wake(0)
	testkit.WaitFor(t, "the rest arrived", func() bool { return len(got.of("hub0")) == each+5 && e.idle() })
	q.add("hub0", each+5, each+10)
	testkit.WaitForValue(t, "fresh ones continue", each+10, func() int { return len(got.of("hub0")) })
	if ids := got.of("hub0"); !slices.IsSorted(ids) {
		t.Errorf("not in order: %v", ids)
	}
}

func TestOrder_DeadLetterUnblocksKey(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var got successes
	sink := got.around(func(_ context.Context, d relay.Delivery) error {
		switch {
		case d.ID == "hub0-000003", strings.HasSuffix(d.ID, "7") && d.Attempt == 3:
			return relay.Permanent(errFar)
		case strings.HasSuffix(d.ID, "5"), strings.HasSuffix(d.ID, "7"):
			return &relay.ResponseError{Status: 409}
		}
		return nil
	})
	q := newQueue(2, 20)
	e.lead(e.pipeline(sink, func(o *Options) {
		ordered(store.OrderingHub)(o)
		o.Schedule.Delays = o.Schedule.Delays[:4]
	}), q)
	const dead = 2*4 + 1
	testkit.WaitFor(
		t,
		"the rest arrived",
		func() bool { return got.count() == 2*20-dead && len(e.deadLetters()) == dead && e.idle() },
	)
	got.check(t, 1, 15, 0)
}

// The age of a delivery counts while it waits for others with its key. Otherwise each of them would use up the whole schedule, and
// the deliveries of a key that always fails would fill the queue.
func TestOrder_WaitingCountsForMaxAge(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var mu sync.Mutex
	attempts := make(map[string]int)
	sink := new(successes).around(func(_ context.Context, d relay.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		attempts[d.ID] = d.Attempt
		return &relay.ResponseError{Status: http.StatusConflict}
	})
	const count = 5
	e.lead(e.pipeline(sink, func(o *Options) {
		ordered(store.OrderingHub)(o)
		o.Schedule = Schedule{Delays: slices.Repeat([]time.Duration{200 * time.Millisecond}, 50), MaxAge: 3 * time.Second}
	}), newQueue(1, count))
	testkit.WaitFor(t, "all are dead letters", func() bool { return len(e.deadLetters()) == count && e.idle() })
	mu.Lock()
	defer mu.Unlock()
	if first, last := attempts["hub0-000000"], attempts["hub0-000004"]; last >= first {
		t.Errorf("got %d attempts of the first delivery and %d of the last, want fewer of the last", first, last)
	}
}

// The next leader continues in order, whether the previous one lost its lease or stopped. Only deliveries in flight are
// repeated.
func TestOrder_NextLeader(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const hubs, each = 4, 200
	var got successes
	sink := got.around(func(ctx context.Context, d relay.Delivery) error {
		select {
		case <-time.After(100 * time.Microsecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		return flaky(ctx, d)
	})
	q := newQueue(hubs, each)
	for n := 1; n < 8; n++ {
		stop, lose := e.lead(e.pipeline(sink, ordered(store.OrderingHub)), q)
		testkit.WaitFor(t, "some arrived", func() bool { return got.count() >= n*hubs*each/10 })
		if n%2 == 0 {
			stop()
			continue
		}
		lose()
		defer stop() // the node continues without the lease
	}
	e.lead(e.pipeline(sink, ordered(store.OrderingHub)), q)
	testkit.WaitFor(
		t,
		"everything arrived",
		func() bool { return got.count() >= hubs*each && q.length() == 0 && e.idle() },
	)
	got.check(t, hubs, each, 7*hubs)
	if got.both > 0 {
		t.Errorf("two deliveries with one key were in flight %d times", got.both)
	}
}

// An attempt is aborted when the lease is lost, and does not count as a failure.
func TestOrder_LostLeaseAbortsAttempts(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	entered := make(chan struct{}, 2)
	sink := &fakeSink{answer: func(ctx context.Context, d relay.Delivery) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}
	e.scheduleDue(1)
	p := e.pipeline(sink, func(o *Options) {
		ordered(store.OrderingHub)(o)
		o.Timeout = time.Hour
	})
	q := newQueue(1, 1)
	_, lose := e.lead(p, q)
	<-entered
	<-entered
	lose()
	if n := e.scheduledCount(); n != 1 || q.length() != 1 || len(e.deadLetters()) != 0 {
		t.Errorf("%d scheduled, %d queued, dead %v", n, q.length(), e.deadLetters())
	}
	if err := handleDelivery(t.Context(), p, ofHub("hub0", 0)); !errors.Is(err, errNotLeader) {
		t.Errorf("without the lease: %v", err)
	}
	l := e.poll(1, time.Minute)
	if len(l.Claims) != 1 {
		t.Errorf("the retry is not due again: %+v", l)
	}
}

func TestOrder_Pause(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const hubs, each = 4, 100
	var got successes
	q := newQueue(hubs, each)
	p := e.pipeline(got.around(flaky), ordered(store.OrderingHub))
	e.lead(p, q)
	for n := 1; n < 5; n++ {
		testkit.WaitFor(t, "some arrived", func() bool { return got.count() >= n*hubs*each/8 })
		if err := errors.Join(e.store.States.Pause(t.Context(), "s"), p.Refresh(t.Context())); err != nil {
			t.Fatal(err)
		}
		testkit.WaitForValue(t, "no attempt is running", 0, func() int64 { return p.runner.Running() })
		before := got.count()
		if q.length() > 0 && got.count() != before {
			t.Error("attempts were made while the sink was paused")
		}
		if err := errors.Join(e.resume(), p.Refresh(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	testkit.WaitFor(
		t,
		"everything arrived",
		func() bool { return got.count() >= hubs*each && q.length() == 0 && e.idle() },
	)
	got.check(t, hubs, each, 0)
}

// A sink with scheduled deliveries may become ordered or unordered.
func TestOrder_ChangedOrdering(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var got successes
	e.scheduleDue(20) // without order
	stop, _ := e.lead(e.pipeline(got.around(flaky), ordered(store.OrderingHub)), newQueue(3, 50))
	testkit.WaitFor(t, "all arrived", func() bool { return got.count() == 20+3*50 && e.idle() })
	got.check(t, 3, 50, 0)
	stop()
	var held successes
	later := held.around(answers(relay.RetryAfter(errFar, time.Hour)))
	stop, _ = e.lead(e.pipeline(later, ordered(store.OrderingHub)), newQueue(3, 50))
	testkit.WaitForValue(t, "all are scheduled", 3*50, func() int64 { return e.scheduledCount() })
	stop()
	for h := range 3 {
		e.client.ZAddXX(t.Context(), "hubrelay:retry:s", redis.Z{Score: 1, Member: fmt.Sprintf("hub%d-000000", h)})
	}
	var last successes
	e.retries(e.pipeline(last.around(flaky), func(o *Options) { ordered(store.OrderingNone)(o) }))
	testkit.WaitFor(t, "all arrived without an order", func() bool { return last.count() == 3*50 && e.idle() })
	last.check(t, 3, 50, 0) // scheduled deliveries keep their order
}

// Held deliveries are in Redis, not in memory.
func TestOrder_HeldDeliveriesTakeNoMemory(t *testing.T) {
	e := newEnv(t)
	const n = 100_000
	sink := &fakeSink{answer: answers(relay.RetryAfter(errFar, time.Hour))}
	p := e.pipeline(sink, ordered(store.OrderingHub))
	q := newQueue(1, 0)
	e.lead(p, q)
	testkit.WaitFor(t, "it leads", func() bool { return handleDelivery(t.Context(), p, ofHub("hub0", 0)) == nil })
	before := heap()
	if err := e.flood(n); err != nil {
		t.Fatal(err)
	}
	for i := n; i < n+1000; i++ { // and some through Handle
		if err := handleDelivery(t.Context(), p, ofHub("hub0", i)); err != nil {
			t.Fatal(err)
		}
	}
	p.orders.refreshSoon()
	if got := e.scheduledCount(); got != n+1000 || sink.attempts("") != 1 {
		t.Errorf("%d scheduled, %d attempts", got, sink.attempts(""))
	}
	if grown := int64(heap()) - int64(before); grown > 8<<20 {
		t.Errorf("the heap grew by %d KiB", grown>>10)
	}
	p.orders.mu.Lock()
	defer p.orders.mu.Unlock()
	if len(p.orders.blocked) != 1 || len(p.orders.inFlight) != 0 {
		t.Errorf("%d keys are blocked, %d in flight", len(p.orders.blocked), len(p.orders.inFlight))
	}
}

// flood schedules the deliveries 1 to n of hub0.
func (e *env) flood(n int) error {
	key := store.OrderingHub.StoredKey(ofHub("hub0", 0).Notifications[0])
	for i := 1; i < n; {
		var all []store.Scheduled
		for ; i < n && len(all) < 1000; i++ {
			d := ofHub("hub0", i)
			body, err := store.NewRecord(d, time.Time{}).Encode()
			if err != nil {
				return err
			}
			all = append(all, store.Scheduled{ID: d.ID, Body: body, OrderingKey: key})
		}
		if _, _, err := e.store.Retries.ScheduleAll(e.t.Context(), "s", 0, all); err != nil {
			return err
		}
	}
	return nil
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Reading many blocked keys takes at most a twentieth of the time of Redis.
func TestNextRefresh(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		0: blockedKeysInterval, time.Second: blockedKeysInterval, 10 * time.Second: 200 * time.Second,
	} {
		if got := nextRefresh(took); got != want {
			t.Errorf("after %s: %s, want %s", took, got, want)
		}
	}
}

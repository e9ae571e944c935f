package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/attempt"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/retry"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// scheduleDue schedules n deliveries of "s" that are due at once.
func (e *env) scheduleDue(n int) {
	e.t.Helper()
	for i := range n {
		r := store.NewRecord(delivery(fmt.Sprint("p", i)), time.Now())
		r.AddAttempt(store.NewAttempt(time.Now(), time.Millisecond, errFar))
		body, err := r.Encode()
		if err != nil {
			e.t.Fatal(err)
		}
		if _, err := e.store.Retries.Schedule(
			e.t.Context(), "s", store.Scheduled{ID: fmt.Sprint("p", i), Body: body}, 0, time.Now()); err != nil {
			e.t.Fatal(err)
		}
	}
}

// Two nodes share the retry queue of a sink. Each delivery is attempted once, by one of them.
func TestRetries_TwoNodes(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const n = 500
	e.scheduleDue(n)
	a, b := &fakeSink{answer: answers(nil)}, &fakeSink{answer: answers(nil)}
	e.retries(e.pipeline(a, nil))
	e.retries(e.pipeline(b, nil))
	testkit.WaitFor(
		t,
		"all delivered",
		func() bool { return e.scheduledCount() == 0 && a.attempts("")+b.attempts("") >= n },
	)
	seen := map[string]int{}
	for _, d := range append(a.got, b.got...) {
		seen[d.ID]++
	}
	for id, times := range seen {
		if times != 1 {
			t.Errorf("%s was attempted %d times", id, times)
		}
	}
	if len(seen) != n {
		t.Errorf("%d attempted, want %d", len(seen), n)
	}
}

// Retries continue on a full Redis, because only they free memory.
func TestRetries_FullRedis(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.scheduleDue(3)
	again := answers(errFar, nil)
	sink := &fakeSink{answer: func(ctx context.Context, d relay.Delivery) error {
		switch d.ID {
		case "p1":
			return again(ctx, d)
		case "p2":
			return relay.Permanent(errFar)
		}
		return nil
	}}
	if err := e.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	e.retries(e.pipeline(sink, nil))
	testkit.WaitForValue(t, "all went", 0, func() int64 { return e.scheduledCount() })
	if n := sink.attempts(""); n != 4 || len(e.deadLetters()) != 1 {
		t.Errorf("%d attempts, dead %v", n, e.deadLetters())
	}
}

// Fresh deliveries and retries share the concurrency limit, and neither class starves.
func TestRetries_ShareConcurrency(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const n = 40
	e.scheduleDue(n)
	sink := &fakeSink{answer: func(ctx context.Context, _ relay.Delivery) error {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
		return nil
	}}
	p := e.pipeline(sink, func(o *Options) { o.Concurrency = 4 })
	e.retries(p)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range n / 8 {
				if err := handleDelivery(t.Context(), p, delivery(fmt.Sprintf("f%d-%d", w, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	testkit.WaitForValue(t, "all retried", 0, func() int64 { return e.scheduledCount() })
	if sink.most > 4 {
		t.Errorf("%d attempts at once, want at most 4", sink.most)
	}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	half := map[bool]int{}
	for _, d := range sink.got[:len(sink.got)/2] {
		half[strings.HasPrefix(d.ID, "f")]++
	}
	if half[true] < n/8 || half[false] < n/8 {
		t.Errorf("got %d fresh deliveries and %d retries in the first half: one class starved", half[true], half[false])
	}
}

func TestRetries_InconsistentQueue(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	e.client.ZAdd(ctx, "hubrelay:retry:s", redis.Z{Score: 1, Member: "bodiless"}, redis.Z{Score: 2, Member: "garbled"})
	e.client.HSet(ctx, "hubrelay:records:s", "garbled", "not json")
	e.scheduleDue(1)
	sink := &fakeSink{answer: answers(nil)}
	obs := &counting{}
	e.retries(e.pipeline(sink, func(o *Options) { o.Observer = obs }))
	testkit.WaitFor(t, "all settled", func() bool {
		return e.scheduledCount() == 0 && sink.attempts("p0") == 1 && obs.get("dead "+ReasonUnreadable) == 1
	})
	letters := e.deadLetters()
	if len(letters) != 1 || letters[0]["id"] != "garbled" || letters[0]["data"] != "not json" ||
		!strings.HasPrefix(fmt.Sprint(letters[0]["reason"]), ReasonUnreadable) {
		t.Errorf("dead letters %v", letters)
	}
	if obs.get("lost") != 1 || obs.get("dead "+ReasonUnreadable) != 1 {
		t.Errorf("observed %v", obs.n)
	}
}

// The claim of a killed node expires. The late outcome of a slow node changes nothing.
func TestClaim_Lost(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	e.scheduleDue(1)
	first := e.poll(10, time.Minute)
	if first.Err != nil || len(first.Claims) != 1 {
		t.Fatalf("%+v", first)
	}
	second := e.poll(10, time.Minute)
	if len(second.Claims) != 0 || second.NextDue <= 0 || second.NextDue > time.Minute {
		t.Errorf("claimed twice: %+v", second)
	}
	e.client.ZAddXX(ctx, "hubrelay:retry:s", redis.Z{Score: 1, Member: "p0"}) // the claim has expired
	second = e.poll(
		10,
		time.Hour,
	) // ends at another time than the first claim
	if len(second.Claims) != 1 {
		t.Fatalf("%+v", second)
	}
	slow, quick := first.Claims[0], second.Claims[0]
	if held, err := e.store.Retries.Reschedule(ctx, slow, "{}", time.Hour); held || err != nil {
		t.Errorf("the old claim rescheduled it: %v %v", held, err)
	}
	letter := store.NewUnreadableDeadLetter(slow, "", time.Now())
	if _, held, err := e.store.DeadLetters.Add(ctx, slow, store.DeadLetterLimit{}, letter); held ||
		err != nil {
		t.Errorf("the old claim stored a dead letter: %v %v", held, err)
	}
	if _, err := e.store.Retries.Complete(ctx, quick); err != nil {
		t.Error(err)
	}
	if held, err := e.store.Retries.Reschedule(ctx, quick, "{}", 0); held || err != nil {
		t.Errorf("a delivered delivery was rescheduled: %v %v", held, err)
	}
	if n := e.scheduledCount(); n != 0 || len(e.deadLetters()) != 0 {
		t.Errorf("%d scheduled, dead %v", n, e.deadLetters())
	}
}

// recordingSink finds out whether a failed poll for the state is repeated.
type recordingSink struct {
	*Pipeline
	hasFailed, isRepeated atomic.Bool
}

func (s *recordingSink) Poll(due, withState bool) store.PollRequest {
	if s.hasFailed.Load() && due && withState {
		s.isRepeated.Store(true)
	}
	return s.Pipeline.Poll(due, withState)
}

func (s *recordingSink) Apply(ctx context.Context, r store.PollResult) error {
	err := s.Pipeline.Apply(ctx, r)
	if r.Err != nil {
		s.hasFailed.Store(true)
	}
	return err
}

func TestRetries_RedisOutage(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.scheduleDue(3)
	sink := &fakeSink{answer: func(_ context.Context, d relay.Delivery) error {
		if d.Attempt == 2 { // the first after it was scheduled
			return errFar
		}
		return nil
	}}
	p := e.pipeline(sink, nil)
	e.server.Kill()
	sinkPolls := &recordingSink{Pipeline: p}
	e.wrap = func(*Pipeline) retry.Sink { return sinkPolls }
	r := e.newNode(0, p)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx) }()
	testkit.WaitFor(t, "a poll failed, and the next requests the state again", sinkPolls.isRepeated.Load)
	e.server.Restart()
	testkit.WaitFor(t, "all delivered", func() bool { return sink.attempts("") >= 6 && e.scheduledCount() == 0 })
	cancel()
	<-done
}

// A failed poll releases its reservation.
func TestPipeline_ApplyError(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.pipeline(&fakeSink{answer: answers(nil)}, func(o *Options) { o.Concurrency = 4 })
	p.state.set(store.StateActive, "")
	taken := p.admission.Reserve(1)
	q := p.Poll(true, false)
	failed := store.PollResult{Claims: make([]store.Claim, 2), Err: errors.New("no reply")}
	if err := p.Apply(t.Context(), failed); err == nil {
		t.Error("Apply() = nil, want an error")
	}
	taken.Close(0, false)
	if free := p.admission.Reserve(4).Len(); q.MaxClaims != 3 || free != 4 {
		t.Errorf("%d slots were taken, %d are free", q.MaxClaims, free)
	}
}

// On shutdown, running attempts may finish. The others are due again at once, unchanged.
func TestRetries_ShutdownReleasesClaims(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.scheduleDue(1)
	entered := make(chan struct{})
	sink := &fakeSink{
		answer: func(ctx context.Context, _ relay.Delivery) error { close(entered); <-ctx.Done(); return ctx.Err() },
	}
	p := e.pipeline(sink, func(o *Options) { o.Timeout = time.Hour })
	r := e.newNode(time.Millisecond, p)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx) }()
	<-entered
	cancel()
	<-done
	l := e.poll(1, time.Minute)
	if len(l.Claims) != 1 {
		t.Fatalf("not due again: %+v", l)
	}
	rec, err := store.DecodeRecord(l.Claims[0].Body)
	if err != nil || rec.AttemptCount != 1 {
		t.Errorf("record %+v, %v", rec, err)
	}
}

func TestScheduler_ManyIdleSinks(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	r := e.newNode(0)
	for i := range 1000 {
		p, err := New(Options{Name: fmt.Sprint("s", i), Sink: &fakeSink{answer: answers(nil)}, Store: e.store})
		if err != nil {
			t.Fatal(err)
		}
		r.add(p, nil)
	}
	sink := &fakeSink{answer: answers(errFar, nil, errFar, nil, errFar, nil)}
	p := e.pipeline(sink, func(o *Options) { o.Schedule.Delays = []time.Duration{100 * time.Millisecond} })
	r.add(p, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx) }()
	quickest := time.Hour
	for i := range 3 { // the machine may stall during one
		id := fmt.Sprint("d", i)
		if err := handleDelivery(ctx, p, delivery(id)); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		testkit.WaitForValue(t, "retried", 2, func() int { return sink.attempts(id) })
		quickest = min(quickest, time.Since(start))
	}
	if quickest >= 5*time.Second { // an idle poll
		t.Errorf("the quickest retry began after %s", quickest)
	}
	cancel()
	<-done
}

type counting struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counting) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[what]++
}

func (c *counting) get(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[what]
}

func (c *counting) Attempted(_ string, attempt int, failure string, _ time.Duration) {
	c.add(fmt.Sprintf("attempt %d %s", attempt, failure))
}
func (c *counting) DeadLettered(_, reason string) { c.add("dead " + reason) }
func (c *counting) Batched(_ string, n int) {
	for range n {
		c.add("batched")
	}
}

func (c *counting) Dropped(_ string, n int64) {
	for range n {
		c.add("dropped")
	}
}
func (c *counting) RetryLost(string) { c.add("lost") }

func TestObserver_Calls(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	obs := &counting{}
	sink := &fakeSink{answer: answers(errFar, relay.Permanent(errFar), relay.Gone(errFar))}
	p := e.pipeline(sink, func(o *Options) { o.Observer = obs })
	e.retries(p)
	if err := handleDelivery(t.Context(), p, delivery("d1")); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForValue(t, "a dead letter", 1, func() int { return obs.get("dead permanent") })
	if err := handleDelivery(t.Context(), p, delivery("d2")); !errors.Is(err, ErrDisabled) {
		t.Fatal(err)
	}
	for what, want := range map[string]int{
		"attempt 1 status_5xx": 2, "attempt 2 status_5xx": 1,
	} {
		if got := obs.get(what); got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
}

// An attempt that the sink could not make does not count, so an account that crashes a plugin does not use up the attempts of
// others. The maximum age still ends the delivery.
func TestSettle_PostponedAttemptsDoNotCount(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	notRunning := relay.Postpone(errFar, time.Millisecond)
	sink := &fakeSink{answer: answers(notRunning, notRunning, notRunning, errFar, nil)}
	obs := &counting{}
	p := e.pipeline(sink, func(o *Options) {
		o.Schedule, o.Observer = Schedule{Delays: []time.Duration{time.Millisecond}}, obs
	})
	e.retries(p)
	if err := handleDelivery(t.Context(), p, delivery("d")); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "the delivery", func() bool { return sink.attempts("d") == 5 && e.scheduledCount() == 0 })
	var numbers []int
	for _, d := range sink.got {
		numbers = append(numbers, d.Attempt)
	}
	if want := []int{1, 1, 1, 1, 2}; !slices.Equal(numbers, want) {
		t.Errorf("got attempts %v, want %v", numbers, want)
	}
	if first, second := obs.get("attempt 1 "+attempt.FailureReason(errFar)), obs.get("attempt 2 "); first != 1 || second != 1 {
		t.Errorf("counted %d first and %d second attempts, want one each", first, second)
	}
}

// The maximum age also ends a replayed delivery that its sink cannot attempt.
func TestSettle_PostponedReplayEnds(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	body, err := store.NewScheduledRecord(delivery("d").Notifications[0]).Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.store.Retries.Schedule(t.Context(), "s", store.Scheduled{ID: "d", Body: body}, 0, time.Now()); err != nil {
		t.Fatal(err)
	}
	sink := &fakeSink{answer: func(context.Context, relay.Delivery) error { return relay.Postpone(errFar, 0) }}
	e.retries(e.pipeline(sink, func(o *Options) {
		o.Schedule = Schedule{Delays: []time.Duration{time.Millisecond}, MaxAge: time.Millisecond}
	}))
	testkit.WaitFor(t, "the dead letter", func() bool { return len(e.deadLetters()) == 1 && e.scheduledCount() == 0 })
}

package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

// backlogs are two limits that three of [largeDelivery] reach.
var backlogs = map[string]func(*Options){
	"backlog":       func(o *Options) { o.Backlog, o.Schedule = 3, afterAnHour },
	"backlog_bytes": func(o *Options) { o.BacklogBytes, o.Schedule = 250_000, afterAnHour },
}

var afterAnHour = Schedule{Delays: []time.Duration{time.Hour}}

func largeDelivery(id string) relay.Delivery {
	d := delivery(id)
	d.Notifications[0].Data = fmt.Appendf(nil, `{"topic":"container.error","padding":%q}`, strings.Repeat("x", 100_000))
	return d
}

// handleLarge passes n large deliveries, named d0 and so on, to a pipeline.
func handleLarge(t *testing.T, p *Pipeline, n int) {
	t.Helper()
	for i := range n {
		if err := handleDelivery(t.Context(), p, largeDelivery(fmt.Sprint("d", i))); err != nil {
			t.Fatal(err)
		}
	}
}

// While the retry queue is full, fresh deliveries stay in their queue, and nothing scheduled is dropped.
func TestBacklog_FullQueueStopsFreshDeliveries(t *testing.T) {
	t.Parallel()
	for name, bounded := range backlogs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			sink := &fakeSink{answer: answers(errFar, errFar, errFar, nil)}
			p := e.pipeline(sink, bounded)
			handleLarge(t, p, 3)
			if !p.IsBacklogFull() {
				t.Error("not full after three")
			}
			e.retries(p)
			done := make(chan error, 1)
			go func() { done <- handleDelivery(t.Context(), p, largeDelivery("d3")) }()
			e.client.ZAdd(t.Context(), "hubrelay:retry:s", redis.Z{Score: 1, Member: "d0"})
			if err := e.store.States.SignalChange(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			order := ""
			for _, d := range sink.got {
				order += d.ID + " "
			}
			if order != "d0 d1 d2 d0 d3 " || e.scheduledCount() != 2 {
				t.Errorf("attempts %s, %d scheduled", order, e.scheduledCount())
			}
		})
	}
}

// A poll replaces a later one. If it came too early to measure a full queue, another one must follow.
func TestBacklog_MeasuresAfterEarlyPoll(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var mu sync.Mutex
	var wakes []time.Duration
	now := time.Now()
	p, err := New(Options{
		Name: "s", Sink: &fakeSink{answer: answers(errFar)}, Store: e.store, Timeout: time.Minute,
		BacklogBytes: 250_000, Schedule: afterAnHour, Now: func() time.Time { return now },
		Wake: func(after time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			wakes = append(wakes, after)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	handleLarge(t, p, 3)
	for _, wantMeasured := range []bool{true, false} {
		wakes = nil
		request := p.Poll(true, true)
		results := e.store.Retries.Poll(t.Context(), []store.PollRequest{request})
		if err := p.Apply(t.Context(), results[0]); err != nil {
			t.Fatal(err)
		}
		if request.WithBytes != wantMeasured || slices.Contains(wakes, measureDelay) == wantMeasured || !p.IsBacklogFull() {
			t.Errorf("measured %t, want %t; wakes %v", request.WithBytes, wantMeasured, wakes)
		}
	}
}

// The records of batches that are delivered now do not count.
func TestBacklog_BatchesDoNotFillIt(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, func(o *Options) { batching(10*time.Millisecond, 5)(o); o.BacklogBytes = 100_000 })
	e.retries(p)
	for i := range 20 {
		if err := handleDelivery(t.Context(), p, largeDelivery(fmt.Sprint("d", i))); err != nil {
			t.Fatal(err)
		}
		if p.IsBacklogFull() {
			t.Fatalf("full after %d batches", i+1)
		}
	}
}

// A node learns from its first poll that the retry queue is full. A pause ends the wait.
func TestBacklog_KnownToAllNodes(t *testing.T) {
	t.Parallel()
	for name, bounded := range backlogs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			first := e.pipeline(&fakeSink{answer: answers(errFar)}, bounded)
			handleLarge(t, first, 3)
			sink := &fakeSink{answer: answers(nil)}
			p := e.pipeline(sink, bounded)
			e.retries(p)
			testkit.WaitFor(t, "full", p.admission.IsFull)
			done := make(chan error, 1)
			go func() { done <- handleDelivery(t.Context(), p, largeDelivery("d3")) }()
			if err := e.store.States.Pause(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errors.Is(err, ErrDisabled) || sink.attempts("") != 0 {
				t.Errorf("Handle = %v after %d attempts", err, sink.attempts(""))
			}
		})
	}
}

func TestBacklog_LimitsReplay(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	log := &fakeLog{reached: "300-0", covers: true, queued: map[string]bool{"2-0": true}}
	for i := 1; i <= 250; i++ {
		n := delivery(fmt.Sprintf("n%d", i)).Notifications[0]
		n.Cursor = fmt.Sprintf("%d-0", i)
		log.entries = append(log.entries, n)
	}
	request := replay.Request{Sink: "s", Partitions: 1, After: replay.StartAt("0-0"), Backlog: 120}
	got, err := e.replay(ctx, log, request)
	if !errors.Is(err, store.ErrFull) || got.Scheduled != 120 || got.Waiting != 1 || got.Next != "121-0" {
		t.Fatalf("%+v, %v", got, err)
	}
	// A nearly full Redis ends it, too.
	e.nearlyFull = true
	got, err = e.replay(ctx, log, request)
	if !errors.Is(err, redisconn.ErrFull) || got.Scheduled != 0 || got.Next != "0-0" {
		t.Errorf("nearly full: %+v, %v", got, err)
	}
	e.nearlyFull = false
	// Deliveries that are scheduled already need no space.
	got, err = e.replay(ctx, log, request)
	if !errors.Is(err, store.ErrFull) || got.Scheduled != 0 || got.Waiting != 121 || got.Next != "121-0" {
		t.Fatalf("%+v, %v", got, err)
	}
	request.After, request.Backlog = replay.StartAt(got.Next), 0
	if got, err = e.replay(ctx, log, request); err != nil || got.Scheduled != 129 || e.scheduledCount() != 249 {
		t.Errorf("%+v, %v, %d scheduled", got, err, e.scheduledCount())
	}
}

// Replays stop when the scheduled deliveries have reached the limit. The last page may exceed it.
func TestBacklog_LimitsBytesOfReplays(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	log := &fakeLog{reached: "9000-0", covers: true, queued: map[string]bool{}}
	for i := 1; i <= 2000; i++ {
		n := delivery(fmt.Sprintf("n%d", i)).Notifications[0]
		n.Cursor = fmt.Sprintf("%d-0", i)
		log.entries = append(log.entries, n)
	}
	request := replay.Request{Sink: "s", Partitions: 1, After: replay.StartAt("0-0"), BacklogBytes: 100_000}
	got, err := e.replay(t.Context(), log, request)
	if !errors.Is(err, store.ErrFull) || got.Scheduled == 0 || got.Scheduled > 1000 ||
		got.Next != fmt.Sprintf("%d-0", got.Scheduled) {
		t.Fatalf("replay of the log: got %+v, %v, want ErrFull and the position to continue at", got, err)
	}
	e.addDeadLetters(t, "d1")
	changed, err := e.replayAllDeadLetters(store.ReplayOptions{MaxBytes: 100_000})
	if !errors.Is(err, store.ErrFull) || changed.Done != 0 || len(e.deadLetters()) != 1 {
		t.Errorf("replay of dead letters: got %+v, %v, want ErrFull", changed, err)
	}
	request.After, request.BacklogBytes = replay.StartAt(got.Next), 1<<30
	if rest, err := e.replay(t.Context(), log, request); err != nil || rest.Scheduled != 2000-got.Scheduled {
		t.Errorf("the rest: got %+v, %v", rest, err)
	}
}

func TestBacklog_LimitsReplayOfDeadLetters(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.scheduleDue(1)
	e.addDeadLetters(t, "d1", "d2", "d3", "d4")
	for _, c := range []struct {
		backlog int64
		replay  func(backlog int64) (store.ChangeResult, error)
		done    int
		left    int
		full    bool
	}{
		{2, func(n int64) (store.ChangeResult, error) {
			return e.replayDeadLetters(store.ReplayOptions{MaxBacklog: n}, "d1", "d2")
		}, 1, 3, true},
		{3, func(n int64) (store.ChangeResult, error) {
			return e.replayAllDeadLetters(store.ReplayOptions{MaxBacklog: n})
		}, 1, 2, true},
		{9, func(n int64) (store.ChangeResult, error) {
			return e.replayAllDeadLetters(store.ReplayOptions{MaxBacklog: n})
		}, 2, 0, false},
	} {
		got, err := c.replay(c.backlog)
		if errors.Is(err, store.ErrFull) != c.full || err != nil && !c.full || got.Done != c.done ||
			len(e.deadLetters()) != c.left {
			t.Errorf("backlog %d: %+v, %v, %d left", c.backlog, got, err, len(e.deadLetters()))
		}
	}
}

func TestDepthTracker(t *testing.T) {
	t.Parallel()
	newTracker := func(backlog int64) (*depthTracker, *admission.Admission) {
		p, err := New(Options{
			Name: "s", Sink: &fakeSink{answer: answers(nil)}, Store: store.New(nil, testKeys()), Backlog: backlog,
		})
		if err != nil {
			t.Fatal(err)
		}
		return p.claims.depth, p.admission
	}
	tracker, limit := newTracker(2)
	for _, step := range []struct {
		scheduled    int64
		filled, full bool
	}{{1, false, false}, {2, true, true}, {3, false, true}, {1, false, false}} {
		if got := tracker.set(step.scheduled, 0); got != step.filled || limit.IsFull() != step.full {
			t.Errorf("%d: filled %v, full %v", step.scheduled, got, limit.IsFull())
		}
	}
	tracker.set(2, 0)
	tracker.removeOne()
	if limit.IsFull() || limit.WaitOpen(t.Context(), &admission.Permit{}) != nil {
		t.Error("full after one delivery has left")
	}
	tracker, unbounded := newTracker(0)
	if tracker.set(1e12, 1e12) || unbounded.IsFull() || unbounded.WaitOpen(t.Context(), &admission.Permit{}) != nil {
		t.Error("full without a limit")
	}
}

// The oldest dead letters and their index entries are dropped, for fresh deliveries and claims.
func TestBacklog_LimitsDeadLetters(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	obs := &counting{}
	reject := &fakeSink{answer: answers(relay.Permanent(errFar))}
	p := e.pipeline(reject, func(o *Options) { o.Backlog, o.Observer = 3, obs })
	for i := range 5 {
		if err := handleDelivery(t.Context(), p, delivery(fmt.Sprint("d", i))); err != nil {
			t.Fatal(err)
		}
	}
	e.scheduleDue(2)
	e.retries(p)
	testkit.WaitFor(t, "dead", func() bool { return e.scheduledCount() == 0 && obs.get("dropped") >= 4 })
	var ids []string
	for _, l := range e.deadLetters() {
		ids = append(ids, fmt.Sprint(l["id"]))
	}
	slices.Sort(ids)
	if !slices.Equal(ids, []string{"d4", "p0", "p1"}) || obs.get("dropped") != 4 {
		t.Errorf("kept %v, %d dropped", ids, obs.get("dropped"))
	}
	index := e.client.HKeys(t.Context(), "hubrelay:deadindex:s").Val()
	slices.Sort(index)
	if !slices.Equal(index, ids) {
		t.Errorf("index %v", index)
	}
	if _, err := e.store.DeadLetters.Get(t.Context(), "s", "d0"); !errors.Is(err, store.ErrNoDeadLetter) {
		t.Error(err)
	}
}

// A lowered limit is reached in steps, so no script takes long.
func TestBacklog_LoweredLimitOfDeadLetters(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for i := range 25 {
		e.write(t, fmt.Sprintf("old%d", i), "job.created", "h1")
	}
	p := e.pipeline(&fakeSink{answer: answers(relay.Permanent(errFar))}, func(o *Options) { o.Backlog = 2 })
	for i, want := range []int{16, 7, 2, 2} {
		if err := handleDelivery(t.Context(), p, delivery(fmt.Sprint("d", i))); err != nil {
			t.Fatal(err)
		}
		if got := len(e.deadLetters()); got != want {
			t.Errorf("%d left, want %d", got, want)
		}
	}
}

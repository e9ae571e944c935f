package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
)

func TestDispatchToThoseThatWant(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sinks := []Sink{
		{Name: "all"},
		{Name: "errors", Filter: relay.Filter{Topics: patterns(t, "*.error")}},
		{Name: "hub2", Filter: relay.Filter{Hubs: []string{"h2"}}},
		{Name: "none", Filter: relay.Filter{Topics: patterns(t, "billing.*")}},
	}
	e.run(e.options(sinks...), true)
	testkit.WaitFor(t, "dispatching", func() bool { return e.leaderHasBegun() })
	e.publish("container.created", "h1", 3)
	e.publish("container.error", "h1", 2)
	e.publish("container.error", "h2", 1)
	testkit.WaitFor(t, "all enqueued", func() bool { return e.queueLength("all") == 6 })
	for sink, want := range map[string][]string{
		"errors": {"h1-container.error-0", "h1-container.error-1", "h2-container.error-0"},
		"hub2":   {"h2-container.error-0"},
		"none":   nil,
	} {
		if got := e.queue(sink); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", sink, got, want)
		}
	}
}

func (e *env) leaderHasBegun() bool {
	n, err := e.b.Commands().HExists(context.Background(), eventlog.DispatchPositionKey(e.b.Keys(), 0), "position").Result()
	return err == nil && n
}

// Two nodes, with the leader stopped over and over: everything is enqueued once and in order.
func TestTwoNodesEnqueueOnce(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sinks := []Sink{{Name: "a", FromStart: true}, {Name: "b", FromStart: true}}
	const rounds, each = 6, 200
	for round := range rounds {
		one, two := e.run(e.options(sinks...), true), e.run(e.options(sinks...), round%2 == 0)
		e.publish(fmt.Sprint("t", round), "h1", each)
		one()
		two()
	}
	e.run(e.options(sinks...), true)
	testkit.WaitFor(t, "all enqueued", func() bool {
		return e.queueLength("a") == rounds*each && e.queueLength("b") == rounds*each
	})
	var want []string
	for round := range rounds {
		for i := range each {
			want = append(want, fmt.Sprintf("h1-t%d-%d", round, i))
		}
	}
	for _, sink := range []string{"a", "b"} {
		if got := e.queue(sink); !slices.Equal(got, want) {
			t.Errorf("%s: not every notification once and in order", sink)
		}
	}
}

// Without any offer the dispatcher reads for itself.
func TestCatchUpWithoutTail(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.publish("x", "h1", 3*rangeCount+7)
	e.run(e.options(Sink{Name: "a", FromStart: true}), false)
	testkit.WaitFor(t, "caught up", func() bool { return e.queueLength("a") == 3*rangeCount+7 })
	e.publish("x", "h1", 3)
	testkit.WaitFor(t, "maintained", func() bool { return e.queueLength("a") == 3*rangeCount+10 })
}

// A sink that joins later begins at the end of the log, or at its start where it says so.
func TestNewSinks(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	stop := e.run(e.options(Sink{Name: "old"}), true)
	testkit.WaitFor(t, "dispatching", e.leaderHasBegun)
	e.publish("x", "h1", 2*rangeCount+3)
	testkit.WaitFor(t, "enqueued", func() bool { return e.queueLength("old") == 2*rangeCount+3 })
	stop()
	e.publish("y", "h1", 5) // nobody dispatches
	if _, err := e.queues.EnsureSinks(t.Context(), 0, map[string]bool{"late": false}); err != nil {
		t.Fatal(err)
	}
	e.publish("z", "h1", 2)
	e.run(e.options(
		Sink{Name: "old"}, Sink{Name: "late"},
		Sink{Name: "whole", FromStart: true, Filter: relay.Filter{Topics: patterns(t, "x", "z")}},
	), true)
	testkit.WaitFor(t, "all enqueued", func() bool {
		return e.queueLength("old") == 2*rangeCount+10 && e.queueLength("whole") == 2*rangeCount+5 && e.queueLength("late") >= 2
	})
	e.publish("z", "h2", 1)
	testkit.WaitFor(t, "live again", func() bool {
		return e.queueLength("old") == 2*rangeCount+11 && e.queueLength("whole") == 2*rangeCount+6 && e.queueLength("late") >= 3
	})
	if got := e.queue("late"); !slices.Equal(got, []string{"h1-z-0", "h1-z-1", "h2-z-0"}) {
		t.Errorf("late: %v", got)
	}
	ids := e.queue("whole")
	slices.Sort(ids)
	if n := len(slices.Compact(ids)); n != 2*rangeCount+6 {
		t.Errorf("whole has %d different ones", n)
	}
}

type counts struct {
	mu                sync.Mutex
	enqueued, dropped map[string]int64
}

func (c *counts) Enqueued(sink string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enqueued[sink] += int64(n)
}

func (c *counts) Dropped(sink string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped[sink] += n
}

func (c *counts) TrimmedBeforeEnqueue(int, int) {}

func TestBacklogIsBoundedAndCounted(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	c := &counts{enqueued: map[string]int64{}, dropped: map[string]int64{}}
	o := e.options(Sink{Name: "small", FromStart: true, Backlog: 10}, Sink{Name: "large", FromStart: true})
	o.Observer = c
	stop := e.run(o, true)
	e.publish("x", "h1", 100)
	testkit.WaitFor(t, "enqueued", func() bool { return e.queueLength("large") == 100 })
	stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	got := e.queue("small")
	if len(got) != 10 || got[9] != "h1-x-99" || c.dropped["small"] != 90 || c.dropped["large"] != 0 ||
		c.enqueued["small"] != 100 || c.enqueued["large"] != 100 {
		t.Errorf("%v, enqueued %v, dropped %v", got, c.enqueued, c.dropped)
	}
}

func TestRedisAway(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.run(e.options(Sink{Name: "a", FromStart: true}), true)
	e.publish("x", "h1", 10)
	testkit.WaitFor(t, "enqueued", func() bool { return e.queueLength("a") == 10 })
	e.server.Restart()
	testkit.WaitFor(t, "publishing again", func() bool {
		_, err := e.log.Append(context.Background(), eventlog.AppendRequest{Hub: "h1", Notifications: []relay.Notification{
			{ID: "after", Topic: "x", Hub: "h1", Data: []byte("{}")},
		}})
		return err == nil
	})
	testkit.WaitFor(t, "enqueued again", func() bool { return e.queueLength("a") >= 11 })
}

// Offer never blocks, whoever leads.
func TestOfferNeverBlocks(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	d, err := NewDispatcher(e.options(Sink{Name: "a"}))
	if err != nil {
		t.Fatal(err)
	}
	d.Offer(eventlog.Batch{})
	if len(d.batches) != 0 {
		t.Error("a batch was taken without the lease")
	}
	d.leading.Store(true)
	for range 3 * offerBuffer {
		d.Offer(eventlog.Batch{})
	}
	if len(d.batches) != offerBuffer || !d.missedOffer.Load() {
		t.Errorf("%d batches wait, missed %v", len(d.batches), d.missedOffer.Load())
	}
}

// fakeQueues replaces Enqueue.
type fakeQueues struct {
	Queues
	enqueue func(queue.EnqueueRequest) (queue.EnqueueResult, error)
}

func (f *fakeQueues) Enqueue(_ context.Context, r queue.EnqueueRequest) (queue.EnqueueResult, error) {
	return f.enqueue(r)
}

// An enqueue whose reply is lost has happened; the dispatcher goes on behind it.
func TestLostReply(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	o := e.options(Sink{Name: "a", FromStart: true})
	n := 0
	o.Queues = &fakeQueues{Queues: e.queues, enqueue: func(q queue.EnqueueRequest) (queue.EnqueueResult, error) {
		r, err := e.queues.Enqueue(context.Background(), q)
		if n++; n%2 == 1 {
			return queue.EnqueueResult{}, errors.New("the reply was lost")
		}
		return r, err
	}}
	e.run(o, true)
	for range 3 {
		e.publish("x", "h1", 50)
	}
	testkit.WaitFor(t, "enqueued", func() bool { return e.queueLength("a") >= 150 })
	if got := e.queueLength("a"); got != 150 {
		t.Errorf("%d enqueued, want 150", got)
	}
}

// Many sinks that want everything do not make one script run for long.
func TestManyMatchesAreSplit(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var sinks []Sink
	for i := range 100 {
		sinks = append(sinks, Sink{Name: fmt.Sprint("s", i), FromStart: true})
	}
	o := e.options(sinks...)
	most := 0
	o.Queues = &fakeQueues{Queues: e.queues, enqueue: func(q queue.EnqueueRequest) (queue.EnqueueResult, error) {
		pairs := 0
		for _, m := range q.Matches {
			pairs += len(m.Sinks)
		}
		most = max(most, pairs)
		return e.queues.Enqueue(context.Background(), q)
	}}
	e.publish("x", "h1", 300)
	stop := e.run(o, true)
	testkit.WaitFor(t, "enqueued", func() bool { return e.queueLength("s0") == 300 && e.queueLength("s99") == 300 })
	stop()
	if most > maxCopiesPerScript+len(sinks) {
		t.Errorf("%d copies in one go", most)
	}
}

func TestNewDispatcherNeeds(t *testing.T) {
	t.Parallel()
	if _, err := NewDispatcher(Options{}); err == nil {
		t.Error("a dispatcher without anything")
	}
	for _, c := range []struct {
		backlog    int64
		partitions int
		want       int64
	}{{0, 4, 0}, {10, 1, 10}, {10, 3, 4}, {1, 8, 1}, {5, 0, 5}} {
		if got := partitionShare(c.backlog, c.partitions); got != c.want {
			t.Errorf("share(%d, %d) = %d, want %d", c.backlog, c.partitions, got, c.want)
		}
	}
}

// BenchmarkDispatch measures log to queue, with sinks that do not match beside the one that does.
func BenchmarkDispatch(b *testing.B) {
	for _, others := range []int{0, 100, 1000} {
		b.Run(fmt.Sprint("others=", others), func(b *testing.B) {
			e := newEnv(b)
			sinks := []Sink{{Name: "one", FromStart: true}}
			for i := range others {
				sinks = append(sinks, Sink{Name: fmt.Sprint("s", i), Filter: relay.Filter{Topics: patterns(b, "billing.*")}})
			}
			for left := b.N; left > 0; left -= 1000 {
				e.publish("x", "h1", min(left, 1000))
			}
			b.ResetTimer()
			start := time.Now()
			e.run(e.options(sinks...), false)
			testkit.WaitFor(b, "enqueued", func() bool { return e.queueLength("one") == int64(b.N) })
			b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "notifications/s")
		})
	}
}

// countedQueues counts calls of Enqueue.
type countedQueues struct {
	*queue.Store
	enqueues atomic.Int64
}

func (l *countedQueues) Enqueue(ctx context.Context, e queue.EnqueueRequest) (queue.EnqueueResult, error) {
	l.enqueues.Add(1)
	return l.Store.Enqueue(ctx, e)
}

// What no sink wants is passed over together, and the stored position follows.
func TestUnwantedEntriesArePassedTogether(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	queues := &countedQueues{Store: e.queues}
	o := e.options(Sink{Name: "errors", Filter: relay.Filter{Topics: patterns(t, "*.error")}})
	o.Queues = queues
	e.run(o, true)
	testkit.WaitFor(t, "dispatching", e.leaderHasBegun)
	const single = 100
	for range single {
		e.publish("x", "h1", 1)
	}
	end, _, err := e.log.TailFrom(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "position at the end", func() bool {
		at, err := e.queues.Position(t.Context(), 0)
		return err == nil && at == end.String()
	})
	if n := queues.enqueues.Load(); n > single/2 {
		t.Errorf("the position was moved %d times for %d entries that nobody wants", n, single)
	}
	e.publish("container.error", "h1", 1)
	testkit.WaitFor(t, "enqueued", func() bool { return e.queueLength("errors") == 1 })
}

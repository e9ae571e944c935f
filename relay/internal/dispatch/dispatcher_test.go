package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
)

func TestDispatcher_EnqueuesMatches(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sinks := []Sink{
		{Name: "all"},
		{Name: "errors", Filter: relay.Filter{Topics: patterns(t, "*.error")}},
		{Name: "hub2", Filter: relay.Filter{Hubs: []string{"h2"}}},
		{Name: "none", Filter: relay.Filter{Topics: patterns(t, "billing.*")}},
	}
	e.run(e.options(sinks...), true)
	testkit.WaitFor(t, "the dispatcher to start", e.hasPosition)
	e.publish("container.created", "h1", 3)
	e.publish("container.error", "h1", 2)
	e.publish("container.error", "h2", 1)
	testkit.WaitForValue(t, "all enqueued", 6, func() int64 { return e.queueLength("all") })
	for sink, want := range map[string][]string{
		"errors": {"h1-container.error-0", "h1-container.error-1", "h2-container.error-0"},
		"hub2":   {"h2-container.error-0"},
		"none":   nil,
	} {
		if got := e.readQueue(sink); !slices.Equal(got, want) {
			t.Errorf("queue %s: got %v, want %v", sink, got, want)
		}
	}
}

func (e *env) hasPosition() bool {
	key := eventlog.DispatchPositionKey(e.b.Keys(), 0)
	n, err := e.b.Commands().HExists(context.Background(), key, "position").Result()
	return err == nil && n
}

// Two nodes, whose leader is stopped repeatedly, enqueue all entries once and in order.
func TestDispatcher_TwoNodesEnqueueOnce(t *testing.T) {
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
		if got := e.readQueue(sink); !slices.Equal(got, want) {
			t.Errorf("queue %s: got %d entries, want all %d once and in order", sink, len(got), len(want))
		}
	}
}

func TestDispatcher_ReadsLogWithoutOffers(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.publish("x", "h1", 3*maxRangeCount+7)
	e.run(e.options(Sink{Name: "a", FromStart: true}), false)
	testkit.WaitForValue(t, "the dispatcher to catch up", 3*maxRangeCount+7, func() int64 { return e.queueLength("a") })
	e.publish("x", "h1", 3)
	testkit.WaitForValue(t, "the next maintenance", 3*maxRangeCount+10, func() int64 { return e.queueLength("a") })
}

// A new sink begins at the end of the log, or at its start if the sink is configured so.
// A dispatcher lags while it reads full pages of the log.
func TestDispatcher_RecordsLag(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	stop := e.run(e.options(Sink{Name: "a"}), false)
	testkit.WaitFor(t, "the dispatcher to start", e.hasPosition)
	stop()
	e.publish("container.created", "h1", maxRangeCount+1)
	o := e.options(Sink{Name: "a"})
	records := make(chan bool, 100)
	o.RecordLag = func(isLagging bool) {
		e.log.RecordDispatchLag(0, isLagging)
		records <- e.log.IsLagging(0)
	}
	e.run(o, false)
	if first, second := <-records, <-records; !first || second {
		t.Errorf("lags after the first read: %t, after the second: %t", first, second)
	}
}

func TestDispatcher_NewSinks(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	stop := e.run(e.options(Sink{Name: "old"}), true)
	testkit.WaitFor(t, "the dispatcher to start", e.hasPosition)
	e.publish("x", "h1", 2*maxRangeCount+3)
	testkit.WaitForValue(t, "enqueued", 2*maxRangeCount+3, func() int64 { return e.queueLength("old") })
	stop()
	e.publish("y", "h1", 5) // no dispatcher is running
	if _, err := e.queues.EnsureSinks(t.Context(), 0, map[string]bool{"late": false}); err != nil {
		t.Fatal(err)
	}
	e.publish("z", "h1", 2)
	e.run(e.options(
		Sink{Name: "old"}, Sink{Name: "late"},
		Sink{Name: "complete", FromStart: true, Filter: relay.Filter{Topics: patterns(t, "x", "z")}},
	), true)
	testkit.WaitFor(t, "all enqueued", func() bool {
		return e.queueLength("old") == 2*maxRangeCount+10 && e.queueLength("complete") == 2*maxRangeCount+5 &&
			e.queueLength("late") >= 2
	})
	e.publish("z", "h2", 1)
	testkit.WaitFor(t, "live dispatching", func() bool {
		return e.queueLength("old") == 2*maxRangeCount+11 && e.queueLength("complete") == 2*maxRangeCount+6 &&
			e.queueLength("late") >= 3
	})
	if got := e.readQueue("late"); !slices.Equal(got, []string{"h1-z-0", "h1-z-1", "h2-z-0"}) {
		t.Errorf("queue late: got %v", got)
	}
	ids := e.readQueue("complete")
	slices.Sort(ids)
	if n := len(slices.Compact(ids)); n != 2*maxRangeCount+6 {
		t.Errorf("queue complete: got %d different entries, want %d", n, 2*maxRangeCount+6)
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

func TestDispatcher_ContinuesAfterOutage(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.run(e.options(Sink{Name: "a", FromStart: true}), true)
	e.publish("x", "h1", 10)
	testkit.WaitForValue(t, "enqueued", 10, func() int64 { return e.queueLength("a") })
	e.server.Restart()
	testkit.WaitFor(t, "an append to succeed", func() bool {
		n := relay.Notification{ID: "after", Topic: "x", Hub: "h1", Data: []byte("{}")}
		a := eventlog.AppendRequest{Hub: "h1", Notifications: []relay.Notification{n}}
		_, err := e.log.Append(context.Background(), a)
		return err == nil
	})
	testkit.WaitFor(t, "enqueued again", func() bool { return e.queueLength("a") >= 11 })
}

func TestOffer_NeverBlocks(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	d, err := NewDispatcher(e.options(Sink{Name: "a"}))
	if err != nil {
		t.Fatal(err)
	}
	d.Offer(eventlog.Batch{})
	if len(d.batches) != 0 {
		t.Error("a batch was accepted without the lease")
	}
	d.leading.Store(true)
	for range 3 * offerBuffer {
		d.Offer(eventlog.Batch{})
	}
	if len(d.batches) != offerBuffer || !d.missedOffer.Load() {
		t.Errorf("got %d waiting batches, missedOffer %t", len(d.batches), d.missedOffer.Load())
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

// If the reply of an enqueue is lost, it was executed, and the dispatcher continues after it.
func TestDispatcher_LostReply(t *testing.T) {
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
		t.Errorf("got %d entries, want 150", got)
	}
}

// Many or large copies must not make a single script run for a long time, or exceed the memory limit of Redis, which it checks
// only before a script.
func TestDispatcher_SplitsMatches(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		sinks, entries, size int
		catchUp              bool // the sinks are new, and the log was dispatched before
	}{
		"many":                    {100, 300, 4, false},
		"large":                   {8, 20, 200 << 10, false},
		"large while catching up": {1, 100, 200 << 10, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			var sinks []Sink
			for i := range tt.sinks {
				sinks = append(sinks, Sink{Name: fmt.Sprint("s", i), FromStart: true})
			}
			o := e.options(sinks...)
			most := 0
			o.Queues = &fakeQueues{Queues: e.queues, enqueue: func(q queue.EnqueueRequest) (queue.EnqueueResult, error) {
				copies := 0
				for _, m := range q.Matches {
					copies += len(m.Sinks)
				}
				most = max(most, copies)
				return e.queues.Enqueue(context.Background(), q)
			}}
			list := make([]relay.Notification, tt.entries)
			for i := range list {
				list[i] = relay.Notification{ID: strconv.Itoa(i), Topic: "x", Hub: "h1", Data: slices.Repeat([]byte("1"), tt.size)}
			}
			for part := range slices.Chunk(list, 20) {
				if _, err := e.log.Append(t.Context(), eventlog.AppendRequest{Hub: "h1", Notifications: part}); err != nil {
					t.Fatal(err)
				}
			}
			if tt.catchUp {
				old := Sink{Name: "old", FromStart: true}
				stop := e.run(e.options(old), true)
				testkit.WaitForValue(t, "the old sink", int64(tt.entries), func() int64 { return e.queueLength("old") })
				stop()
				o.Matcher = NewMatcher(append(sinks, old))
			}
			stop := e.run(o, true)
			testkit.WaitFor(t, "enqueued", func() bool {
				return e.queueLength("s0") == int64(tt.entries) && e.queueLength(sinks[len(sinks)-1].Name) == int64(tt.entries)
			})
			stop()
			if limit := min(maxCopiesPerScript, maxBytesPerScript/tt.size+1) + tt.sinks; most > limit {
				t.Errorf("got %d copies in one script, want at most %d", most, limit)
			}
		})
	}
}

// endlessLog has one more entry after each read.
type endlessLog struct {
	*eventlog.Log
	e *env
}

func (l endlessLog) Range(ctx context.Context, partition int, after string, count int) ([]relay.Notification, error) {
	list, err := l.Log.Range(ctx, partition, after, count)
	l.e.publish("x", "h1", 1)
	return list, err
}

// Entries that arrive while the dispatcher reads the log do not keep it from a reload.
func TestDispatcher_EndsCatchUp(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	o := e.options(Sink{Name: "a", FromStart: true})
	o.Log = endlessLog{e.log, e}
	d, err := NewDispatcher(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	testkit.WaitFor(t, "the first entries", func() bool { return e.queueLength("a") > 0 })
	d.Reload(NewMatcher([]Sink{{Name: "a", FromStart: true}, {Name: "b", FromStart: true}}))
	testkit.WaitFor(t, "the new sink", func() bool { return e.queueLength("b") > 0 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNewDispatcher_RequiresOptions(t *testing.T) {
	t.Parallel()
	if _, err := NewDispatcher(Options{}); err == nil {
		t.Error("NewDispatcher without options: got no error")
	}
	for _, c := range []struct {
		backlog    int64
		partitions int
		want       int64
	}{{0, 4, 0}, {10, 1, 10}, {10, 3, 4}, {1, 8, 1}, {5, 0, 5}} {
		if got := partitionShare(c.backlog, c.partitions); got != c.want {
			t.Errorf("partitionShare(%d, %d): got %d, want %d", c.backlog, c.partitions, got, c.want)
		}
	}
}

// BenchmarkDispatch measures the way from the log to a queue, with other sinks that do not match.
func BenchmarkDispatch(b *testing.B) {
	for _, others := range []int{0, 100, 1000} {
		b.Run(fmt.Sprint("others=", others), func(b *testing.B) {
			e := newEnv(b)
			sinks := []Sink{{Name: "one", FromStart: true}}
			for i := range others {
				filter := relay.Filter{Topics: patterns(b, "billing.*")}
				sinks = append(sinks, Sink{Name: fmt.Sprint("s", i), Filter: filter})
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

func (c *countedQueues) Enqueue(ctx context.Context, e queue.EnqueueRequest) (queue.EnqueueResult, error) {
	c.enqueues.Add(1)
	return c.Store.Enqueue(ctx, e)
}

// Entries that no sink matches are skipped together, and the stored position follows.
func TestDispatcher_SavesPositionRarelyWithoutMatches(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	queues := &countedQueues{Store: e.queues}
	o := e.options(Sink{Name: "errors", Filter: relay.Filter{Topics: patterns(t, "*.error")}})
	o.Queues = queues
	e.run(o, true)
	testkit.WaitFor(t, "the dispatcher to start", e.hasPosition)
	const single = 100
	for range single {
		e.publish("x", "h1", 1)
	}
	end, _, err := e.log.TailFrom(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "the position to reach the end", func() bool {
		at, err := e.queues.Position(t.Context(), 0)
		return err == nil && at == end.String()
	})
	if n := queues.enqueues.Load(); n > single/2 {
		t.Errorf("got %d writes for %d entries without a match, want at most %d", n, single, single/2)
	}
	e.publish("container.error", "h1", 1)
	testkit.WaitForValue(t, "enqueued", 1, func() int64 { return e.queueLength("errors") })
}

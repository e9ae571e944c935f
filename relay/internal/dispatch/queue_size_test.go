package dispatch

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/storage"
)

type noStorageObserver struct{}

func (noStorageObserver) StorageUsed(float64, bool) {}

// newMonitor returns a monitor of the memory of Redis, which gets a limit.
func (e *env) newMonitor(maxMemory string) *storage.Monitor {
	e.t.Helper()
	if err := e.b.Commands().ConfigSet(context.Background(), "maxmemory", maxMemory).Err(); err != nil {
		e.t.Fatal(err)
	}
	return storage.NewMonitor(storage.Options{
		Read: e.b.Memory, Limit: 0.9, Log: slog.New(slog.DiscardHandler), Observer: noStorageObserver{},
	})
}

// publishLarge appends a notification with 200 kB of data, unless Redis is full.
func (e *env) publishLarge(id string) error {
	n := relay.Notification{ID: id, Topic: "x", Hub: "h1", Data: bytes.Repeat([]byte("1"), 200_000)}
	_, err := e.log.Append(context.Background(), eventlog.AppendRequest{Hub: "h1", Notifications: []relay.Notification{n}})
	return err
}

// deliver removes entries from the queue of a sink, as a destination that works, and returns their IDs.
func (e *env) deliver(sink string) []string {
	e.t.Helper()
	key := queue.Key(e.b.Keys(), sink, 0)
	list, err := e.b.Commands().XRangeN(context.Background(), key, "-", "+", 20).Result()
	if err != nil {
		e.t.Error(err)
	}
	var ids []string
	for _, m := range list {
		ids = append(ids, fmt.Sprint(m.Values["id"]))
		if err := e.b.Commands().XDel(context.Background(), key, m.ID).Err(); err != nil {
			e.t.Error(err)
		}
	}
	return ids
}

// Sinks that do not deliver must not fill Redis with copies, which would stop the other sinks. They get everything once
// they deliver again.
func TestDispatcher_FullRedis(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	monitor := e.newMonitor("48mb")
	var log testkit.Buffer
	var sinks []Sink
	hanging := []string{"h0", "h1", "h2", "h3"}
	for _, name := range append([]string{"good"}, hanging...) {
		sinks = append(sinks, Sink{Name: name, FromStart: true, Backlog: 1_000_000, AccountShare: 50})
	}
	o := e.options(sinks...)
	o.Memory = monitor
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	o.Retention = func() eventlog.Retention { return eventlog.Retention{History: time.Hour, MaxBytes: 12 << 20} }
	e.run(o, true)

	var mu sync.Mutex
	var delivered []string
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for ctx.Err() == nil {
			ids := e.deliver("good")
			mu.Lock()
			delivered = append(delivered, ids...)
			mu.Unlock()
		}
	})
	// The burst ends when Redis rejects it. Publishers would stop earlier, because the monitor measures each second.
	published, maxUsed := []string{}, int64(0)
	for {
		id := strconv.Itoa(len(published))
		if err := e.publishLarge(id); redisconn.IsOutOfMemory(err) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		published = append(published, id)
	}
	testkit.WaitFor(t, "all deliveries of the good sink", func() bool {
		monitor.Measure(t.Context())
		maxUsed = max(maxUsed, monitor.UsedMemory())
		mu.Lock()
		defer mu.Unlock()
		return len(delivered) == len(published)
	})
	cancel()
	wg.Wait()
	if !slices.Equal(delivered, published) {
		t.Errorf("good sink: got %d deliveries, want all %d in order", len(delivered), len(published))
	}
	if limit := int64(60 << 20); maxUsed > limit {
		t.Errorf("Redis used %d bytes, want at most %d", maxUsed, limit)
	}
	testkit.WaitFor(t, "a message about full queues", func() bool {
		return strings.Contains(log.String(), "the queues of sinks are full")
	})
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "full") && strings.Contains(line, "good") {
			t.Errorf("a message names the good sink: %s", line)
		}
	}
	for _, name := range hanging {
		var got []string
		testkit.WaitFor(t, "the deliveries of "+name, func() bool {
			monitor.Measure(t.Context())
			got = append(got, e.deliver(name)...)
			return len(got) >= len(published)
		})
		if !slices.Equal(got, published) {
			t.Errorf("sink %s: got %d deliveries, want all %d in order", name, len(got), len(published))
		}
	}
	// The log is trimmed when no sink needs it.
	testkit.WaitFor(t, "the log to be trimmed", func() bool {
		used, err := e.b.Commands().MemoryUsage(t.Context(), eventlog.Key(e.b.Keys(), 0), 0).Result()
		return err == nil && used < 16<<20
	})
}

// The queue and the retries of a sink together get an equal share of a quarter of the memory. Sinks with backlog_bytes or
// batches have other limits.
func TestDispatcher_QueueShares(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	o := e.options(
		Sink{Name: "slow", FromStart: true}, Sink{Name: "retrying", FromStart: true},
		Sink{Name: "limited", FromStart: true, BacklogBytes: 24 << 20},
		Sink{Name: "batches", FromStart: true, CollectsBatches: true},
	)
	monitor := e.newMonitor("160mb")
	monitor.Measure(t.Context())
	o.Memory = monitor
	o.RetrySizes = func(_ context.Context, sinks []string) ([]int64, error) {
		sizes := make([]int64, len(sinks))
		for i, name := range sinks {
			if name == "retrying" {
				sizes[i] = 8 << 20
			}
		}
		return sizes, nil
	}
	e.run(o, true)
	const count = 75 // 15 MB; the shares are 10 MB
	for i := range count {
		if err := e.publishLarge(strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	testkit.WaitForValue(t, "the queue with its own limit", count, func() int64 { return e.queueLength("limited") })
	testkit.WaitForValue(t, "the queue of batches", count, func() int64 { return e.queueLength("batches") })
	// A script copies up to 8 MiB for all four.
	if n := e.queueLength("slow"); n < 40 || n > 70 {
		t.Errorf("queue slow: got %d entries, want about 50", n)
	}
	if n := e.queueLength("retrying"); n < 8 || n > 28 {
		t.Errorf("queue retrying: got %d entries, want about 10", n)
	}
}

// Sinks that are stuck keep their equal part. The others have a larger one while many are stuck.
func TestDispatcher_QueueLimitOfStuckSinks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sinks []Sink
		for i := range 40 {
			sinks = append(sinks, Sink{Name: strconv.Itoa(i)})
		}
		d := &Dispatcher{opts: Options{Memory: fixedMemory(40 << 20), Partitions: 2}}
		d.useMatcher(NewMatcher(sinks))
		const good, recovering, hanging = 0, 1, 2
		for i := recovering; i < len(sinks); i++ {
			d.catchUps[i] = &catchUp{}
			d.setFull(i, true)
		}
		measure := func() {
			for i, c := range d.catchUps {
				if i == recovering {
					d.sizes[i]--
				}
				c.recordSize(d.sizes[i])
			}
			d.updateStuckCount()
		}
		check := func(when string, wants map[int]int64) {
			t.Helper()
			for sink, want := range wants {
				if got := d.queueLimit(sink); got != want {
					t.Errorf("%s: got a limit of %d for sink %d, want %d", when, got, sink, want)
				}
			}
		}
		measure()
		check("at first", map[int]int64{good: 512 << 10, recovering: 512 << 10, hanging: 512 << 10})
		time.Sleep(stuckAge)
		measure()
		check("after a while", map[int]int64{good: 2560 << 10, recovering: 2560 << 10, hanging: 512 << 10})
	})
}

// fixedMemory is a memory with a limit of all queues in bytes.
type fixedMemory int64

func (m fixedMemory) QueueLimit() (int64, bool) { return int64(m), false }
func (fixedMemory) Measure(context.Context)     {}

package dispatch

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
)

func TestDispatcher_LimitsBacklog(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	c := &counts{enqueued: map[string]int64{}, dropped: map[string]int64{}}
	o := e.options(Sink{Name: "small", FromStart: true, Backlog: 10}, Sink{Name: "large", FromStart: true})
	o.Observer = c
	stop := e.run(o, true)
	e.publish("x", "h1", 100)
	testkit.WaitForValue(t, "enqueued", 100, func() int64 { return e.queueLength("large") })
	testkit.WaitForValue(t, "dropped", 90, func() int64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.dropped["small"]
	})
	stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	got := e.readQueue("small")
	if len(got) != 10 || got[9] != "h1-x-99" || c.dropped["small"] != 90 || c.dropped["large"] != 0 ||
		c.enqueued["small"] != 100 || c.enqueued["large"] != 100 {
		t.Errorf("got queue %v, enqueued %v, dropped %v", got, c.enqueued, c.dropped)
	}
}

func TestDispatcher_LimitsBacklogBytes(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const limit = 64 << 10
	small := Sink{Name: "small", FromStart: true, Backlog: 5000}
	large := Sink{Name: "large", FromStart: true, BacklogBytes: 1 << 30}
	stop := e.run(e.options(small, large), true)
	e.publish("x", "h1", 3000)
	testkit.WaitFor(t, "enqueued", func() bool {
		return e.queueLength("small") == 3000 &&
			e.queueLength("large") == 3000
	})
	stop()
	small.BacklogBytes = limit
	e.run(e.options(small, large), true)
	e.publish("y", "h1", 1)
	testkit.WaitForValue(t, "enqueued", 3001, func() int64 { return e.queueLength("large") })
	testkit.WaitFor(t, "the limit", func() bool {
		used, err := e.b.Commands().MemoryUsage(t.Context(), queue.Key(e.b.Keys(), "small", 0), 0).Result()
		return err == nil && used <= limit
	})
	if got := e.readQueue("small"); len(got) < 100 || got[len(got)-1] != "h1-y-0" {
		t.Errorf("got %d entries, want the newest ones", len(got))
	}
}

// A limit that became lower applies without new events, and also while the first entries of the queue are being delivered.
func TestDispatcher_LimitsQueueInDelivery(t *testing.T) {
	t.Parallel()
	for name, limited := range map[string]Sink{
		"backlog":       {Name: "s", FromStart: true, Backlog: 100},
		"backlog_bytes": {Name: "s", FromStart: true, Backlog: 5000, BacklogBytes: 64 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			stop := e.run(e.options(Sink{Name: "s", FromStart: true, Backlog: 5000}), true)
			e.publish("x", "h1", 3000)
			testkit.WaitForValue(t, "enqueued", 3000, func() int64 { return e.queueLength("s") })
			stop()
			key := queue.Key(e.b.Keys(), "s", 0)
			if err := e.b.Commands().XGroupCreate(t.Context(), key, "g", "0").Err(); err != nil {
				t.Fatal(err)
			}
			read := &redis.XReadGroupArgs{Group: "g", Consumer: "c", Streams: []string{key, ">"}, Count: 5, Block: -1}
			if err := e.b.Commands().XReadGroup(t.Context(), read).Err(); err != nil {
				t.Fatal(err)
			}
			c := &counts{enqueued: map[string]int64{}, dropped: map[string]int64{}}
			o := e.options(limited)
			o.Observer = c
			stop = e.run(o, true)
			testkit.WaitFor(t, "a short queue", func() bool {
				used, err := e.b.Commands().MemoryUsage(t.Context(), key, 0).Result()
				return err == nil && used < 96<<10
			})
			stop()
			got := e.readQueue("s")
			if len(got) < 100 || got[len(got)-1] != "h1-x-2999" {
				t.Errorf("got %d entries, want the newest ones", len(got))
			}
			if want := int64(3000 - 5 - len(got)); c.dropped["s"] != want {
				t.Errorf("counted %d dropped entries, want %d, because a consumer delivers five", c.dropped["s"], want)
			}
		})
	}
}

package pipeline

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

func (e *env) makeDue(want int) {
	e.t.Helper()
	if n, err := e.store.Retries.MakeDue(e.t.Context(), "s"); err != nil || n != want {
		e.t.Fatalf("%d became due, %v, want %d", n, err, want)
	}
}

// makeAllDue is makeDue if some may be due already.
func (e *env) makeAllDue() {
	e.t.Helper()
	if _, err := e.store.Retries.MakeDue(e.t.Context(), "s"); err != nil {
		e.t.Fatal(err)
	}
}

// Deliveries that wait for hours are attempted at once, even if Redis is full. Running attempts are not affected.
func TestMakeDue(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *env{
		"Redis": newEnv, "a full Redis": newEnv, "a cluster": newClusterEnv,
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t)
			scheduled := func() int64 {
				f, err := e.store.Stats.Read(t.Context(), []string{"s"})
				if err != nil {
					t.Fatal(err)
				}
				return f[0].Scheduled
			}
			release, mended := make(chan struct{}), answers(errFar, errFar, errFar, nil)
			sink := &fakeSink{answer: func(ctx context.Context, d relay.Delivery) error {
				if d.ID == "p0" {
					<-release
					return nil
				}
				return mended(ctx, d)
			}}
			p := e.pipeline(sink, func(o *Options) {
				o.Schedule, o.Timeout = Schedule{Delays: []time.Duration{time.Hour, time.Hour, time.Hour}}, time.Minute
			})
			e.scheduleDue(1)
			e.retries(p)
			for i := range 3 {
				if err := handleDelivery(t.Context(), p, delivery(fmt.Sprint("d", i))); err != nil {
					t.Fatal(err)
				}
			}
			testkit.WaitFor(
				t,
				"one is being attempted and three wait",
				func() bool { return sink.attempts("p0") == 1 && scheduled() == 4 },
			)
			if name == "a full Redis" {
				if err := e.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
					t.Fatal(err)
				}
			}
			e.makeDue(3)
			p.opts.Wake(0)
			testkit.WaitForValue(t, "those that waited are delivered", 1, func() int64 { return scheduled() })
			if n := sink.attempts("p0"); n != 1 {
				t.Errorf("the running delivery was attempted %d times", n)
			}
			close(release)
			testkit.WaitForValue(t, "the running one too", 0, func() int64 { return scheduled() })
			if n := sink.attempts(""); n != 7 {
				t.Errorf("%d attempts, want 7", n)
			}
		})
	}
}

// In an ordered sink, the first delivery of each key becomes due, and the others follow in order.
func TestMakeDue_Order(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const hubs, each = 4, 50
	var got successes
	var mended bool
	sink := got.around(func(context.Context, relay.Delivery) error {
		got.mu.Lock()
		defer got.mu.Unlock()
		if !mended {
			return relay.RetryAfter(errFar, time.Hour)
		}
		return nil
	})
	p := e.pipeline(sink, func(o *Options) {
		ordered(store.OrderingHub)(o)
		o.Schedule = Schedule{Delays: []time.Duration{time.Hour, time.Hour}}
	})
	q := newQueue(hubs, each)
	e.lead(p, q)
	testkit.WaitFor(t, "all wait", func() bool { return q.length() == 0 && e.scheduledCount() == hubs*each })
	got.mu.Lock()
	mended = true
	got.mu.Unlock()
	e.makeDue(hubs)
	p.ProbeNow()
	testkit.WaitFor(t, "all arrived", func() bool { return got.count() == hubs*each && e.idle() })
	got.check(t, hubs, each, 0)
	if got.both > 0 {
		t.Errorf("two deliveries with one key were in flight %d times", got.both)
	}
}

// Many deliveries with equal and different times, between claims: all become due, and no claim changes.
func TestMakeDue_ManyDeliveries(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	soon := time.Now().Add(time.Hour).UnixMilli()
	const n = 3*makeDuePage + 7
	random := rand.New(rand.NewPCG(1, 0))
	claims, waiting := map[string]float64{}, 0
	for i := range n {
		id, score := fmt.Sprint("d", i), float64(soon+random.Int64N(20))
		switch {
		case i%10 == 0:
			score = float64(soon) + 5.5 // more than a page of one claim and time
			claims[id] = score
		case i%10 < 5:
			score = float64(soon + 5)
			waiting++
		case i%10 == 5:
			score = 9e12
			claims[id] = score
		default:
			waiting++
		}
		e.client.ZAdd(t.Context(), "hubrelay:retry:s", redis.Z{Score: score, Member: id})
	}
	for i := range 2 * makeDuePage {
		id := fmt.Sprint("claimed", i)
		claims[id] = float64(soon) + 7.5
		e.client.ZAdd(t.Context(), "hubrelay:retry:s", redis.Z{Score: claims[id], Member: id})
	}
	e.makeDue(waiting)
	e.makeDue(waiting) // also counts deliveries that were due before
	all, err := e.client.ZRangeWithScores(t.Context(), "hubrelay:retry:s", 0, -1).Result()
	if err != nil || len(all) != n+2*makeDuePage {
		t.Fatal(len(all), err)
	}
	for _, z := range all {
		id, _ := z.Member.(string)
		if claim, ok := claims[id]; ok && z.Score != claim || !ok && z.Score > float64(time.Now().UnixMilli()) {
			t.Errorf("%s is due at %.1f", id, z.Score)
		}
	}
}

// A delivery that becomes due during MakeDue is not counted again.
func TestMakeDue_BecomesDueMeanwhile(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const n = 10 * makeDuePage
	soon := float64(time.Now().Add(time.Second).UnixMilli())
	all := make([]redis.Z, n)
	for i := range all {
		all[i] = redis.Z{Score: soon, Member: fmt.Sprint("d", i)}
	}
	e.client.ZAdd(ctx, "hubrelay:retry:s", all...)
	testkit.WaitFor(t, "they are almost due", func() bool { return float64(time.Now().UnixMilli()) > soon-2 })
	if got, err := e.store.Retries.MakeDue(ctx, "s"); err != nil || got > n {
		t.Errorf("%d of %d became due, %v", got, n, err)
	}
}

// MakeDue runs repeatedly while two nodes work on a queue with many failures. No delivery is attempted by both at once.
func TestMakeDue_WhileRetrying(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const n = 300
	e.scheduleDue(n)
	var got successes
	sink := got.around(flaky)
	for range 2 {
		e.retries(e.pipeline(sink, func(o *Options) {
			o.Schedule = Schedule{
				Delays: []time.Duration{
					time.Hour,
					time.Hour,
					time.Hour,
					time.Hour,
					time.Hour,
					time.Hour,
					time.Hour,
					time.Hour,
				},
			}
		}))
	}
	testkit.WaitForValue(t, "all are delivered", 0, func() int64 {
		if _, err := e.store.Retries.MakeDue(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
		return e.scheduledCount()
	})
	if len(e.deadLetters()) > 0 {
		t.Errorf("dead: %v", e.deadLetters())
	}
	seen := map[string]int{}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for _, d := range sink.got {
		if seen[d.ID]++; d.Attempt != seen[d.ID]+1 { // one attempt was made before it was scheduled
			t.Errorf("%s: attempt %d has number %d", d.ID, seen[d.ID], d.Attempt)
		}
	}
}

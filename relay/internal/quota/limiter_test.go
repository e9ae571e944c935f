package quota

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// memoryStore is a [Store] in memory with the rules of lease.lua.
type memoryStore struct {
	mu     sync.Mutex
	state  map[string]*memoryBucket
	leases atomic.Int64
	err    error
}

type memoryBucket struct {
	n, b float64
	at   time.Time
}

func (s *memoryStore) Lease(_ context.Context, name string, l Limit, need, want Amount) (Lease, error) {
	s.leases.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return Lease{}, s.err
	}
	capacity := func(rate int64) float64 { return float64(rate) * l.Burst.Seconds() }
	if s.state == nil {
		s.state = make(map[string]*memoryBucket)
	}
	b := s.state[name]
	if b == nil {
		b = &memoryBucket{capacity(l.PerSecond.Count), capacity(l.PerSecond.Bytes), time.Now()}
		s.state[name] = b
	}
	elapsed := time.Since(b.at).Seconds()
	wait := 0.0
	take := func(have float64, rate, need, want int64) (float64, int64) {
		have = min(capacity(rate), have+elapsed*float64(rate))
		if missing := min(float64(need), capacity(rate)) - have; rate > 0 && missing > 0 {
			wait = max(wait, missing/float64(rate))
		}
		return have, max(need, min(want, int64(math.Floor(have))))
	}
	n, gotN := take(b.n, l.PerSecond.Count, need.Count, want.Count)
	bytes, gotB := take(b.b, l.PerSecond.Bytes, need.Bytes, want.Bytes)
	if wait > 0 {
		return Lease{RetryIn: time.Duration(math.Ceil(wait*1000)) * time.Millisecond}, nil
	}
	b.n, b.b, b.at = n-float64(gotN), bytes-float64(gotB), time.Now()
	return Lease{Granted: Amount{gotN, gotB}}, nil
}

// Three nodes publish as fast as they can. Together they stay below the limit plus its burst, and use nearly all of it.
func TestLimiter_SharesLimitBetweenNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const seconds, rate = 20, 1000
		limit := Limit{PerSecond: Amount{Count: rate}, Burst: time.Second}
		store := &memoryStore{}
		var accepted atomic.Int64
		var nodes sync.WaitGroup
		for range 3 {
			node := NewLimiter(limit, store)
			nodes.Go(func() {
				for start := time.Now(); time.Since(start) < seconds*time.Second; time.Sleep(time.Millisecond) {
					if wait, err := node.Take(t.Context(), "k", Amount{Count: 1}); err != nil {
						t.Error(err)
					} else if wait == 0 {
						accepted.Add(1)
					}
				}
			})
		}
		nodes.Wait()
		if got := accepted.Load(); got > rate*(seconds+1) || got < rate*seconds*95/100 {
			t.Errorf("got %d accepted in %d s with %d/s and a burst of 1 s", got, seconds, rate)
		}
	})
}

func TestLimiter_NeedsFewLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		q := NewLimiter(Limit{PerSecond: Amount{10_000, 1 << 20}, Burst: time.Second}, store)
		const requests = 4000
		for range requests {
			if wait, err := q.Take(t.Context(), "k", Amount{1, 100}); err != nil || wait > 0 {
				t.Fatalf("got wait %s, %v", wait, err)
			}
			time.Sleep(200 * time.Microsecond)
		}
		if leases := store.leases.Load(); leases > requests/100 {
			t.Errorf("got %d leases for %d requests", leases, requests)
		}
	})
}

// A request that is larger than the burst passes when the bucket is full, and then others wait for its tokens.
func TestLimiter_AllowsLargeRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewLimiter(Limit{PerSecond: Amount{Count: 10}, Burst: time.Second}, &memoryStore{})
		if wait, err := q.Take(t.Context(), "k", Amount{Count: 50}); wait != 0 || err != nil {
			t.Fatalf("a large request: got wait %s, %v", wait, err)
		}
		wait, err := q.Take(t.Context(), "k", Amount{Count: 1})
		if err != nil || wait != 4100*time.Millisecond {
			t.Errorf("the next request: got wait %s, %v", wait, err)
		}
		time.Sleep(wait)
		if wait, err := q.Take(t.Context(), "k", Amount{Count: 1}); wait != 0 || err != nil {
			t.Errorf("after the wait: got wait %s, %v", wait, err)
		}
		if wait, err := q.Take(t.Context(), "other", Amount{Count: 1}); wait != 0 || err != nil {
			t.Errorf("another bucket: got wait %s, %v", wait, err)
		}
	})
}

// An unused lease ends, so a node cannot save tokens for later.
func TestLimiter_LeaseEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		q := NewLimiter(Limit{PerSecond: Amount{Count: 100}, Burst: time.Second}, store)
		for range 2 {
			if wait, err := q.Take(t.Context(), "k", Amount{Count: 1}); wait != 0 || err != nil {
				t.Fatal(wait, err)
			}
			time.Sleep(leaseTime)
		}
		if got := store.leases.Load(); got != 2 {
			t.Errorf("got %d leases, want 2", got)
		}
	})
}

func TestLimiter_ReportsStoreErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("redis is away")
	q := NewLimiter(Limit{PerSecond: Amount{Bytes: 1}, Burst: time.Second}, &memoryStore{err: broken})
	if _, err := q.Take(t.Context(), "k", Amount{Bytes: 1}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if wait, err := q.Take(t.Context(), "k", Amount{Count: 1}); wait != 0 || err != nil {
		t.Errorf("without a limit for events: got wait %s, %v", wait, err)
	}
}

// slowStore fails after five seconds.
type slowStore struct{}

func (slowStore) Lease(context.Context, string, Limit, Amount, Amount) (Lease, error) {
	time.Sleep(5 * time.Second)
	return Lease{}, errors.New("redis is away")
}

// Requests that wait for one lease fail together, not one after another.
func TestLimiter_StoreFailsForAllWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewLimiter(Limit{PerSecond: Amount{Count: 10}, Burst: time.Second}, slowStore{})
		start := time.Now()
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				if _, err := q.Take(t.Context(), "k", Amount{Count: 1}); err == nil {
					t.Error("got no error")
				}
			})
		}
		all.Wait()
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("the last request failed after %s, want 5 s", took)
		}
		if _, err := q.Take(t.Context(), "k", Amount{Count: 1}); err == nil || time.Since(start) != 10*time.Second {
			t.Errorf("a later request: got error %v after %s, want one of its own", err, time.Since(start))
		}
	})
}

// Keys of other systems may have the same name in two accounts.
func TestQuotas_KeysOfAccounts(t *testing.T) {
	t.Parallel()
	limit := Limit{PerSecond: Amount{Count: 1}, Burst: time.Second}
	q := NewQuotas(Options{Key: limit, Store: &memoryStore{}, Rejected: func(Kind) {}})
	for _, account := range []string{"a", "b", ""} {
		c := Client{Key: "forward:ci", Account: account}
		if err := q.Take(t.Context(), c, Amount{Count: 1}); err != nil {
			t.Errorf("account %q: %v", account, err)
		}
		if err := q.Take(t.Context(), c, Amount{Count: 1}); err == nil {
			t.Errorf("account %q has no limit", account)
		}
	}
}

func TestLimiter_BoundsBuckets(t *testing.T) {
	t.Parallel()
	q := NewLimiter(Limit{PerSecond: Amount{Count: 10}, Burst: time.Second}, &memoryStore{})
	for i := range maxBuckets + 10 {
		if _, err := q.Take(t.Context(), strconv.Itoa(i), Amount{Count: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(q.buckets); n > maxBuckets {
		t.Errorf("got %d buckets, want at most %d", n, maxBuckets)
	}
}

// The script follows the same rules as the store in memory.
func TestRedisStore(t *testing.T) {
	t.Parallel()
	c := conntest.Open(t, redistest.Start(t), redisconn.Options{})
	s := NewRedisStore(c.Commands(), c.Keys())
	limit := Limit{PerSecond: Amount{Count: 1}, Burst: 10 * time.Second} // slow, so a stall changes little
	lease := func(bucket string, l Limit, need, want Amount) Lease {
		t.Helper()
		got, err := s.Lease(t.Context(), bucket, l, need, want)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := lease("a", limit, Amount{Count: 2},
		Amount{Count: 4}); got != (Lease{Granted: Amount{4, 0}}) {
		t.Errorf("a full bucket: got %+v", got)
	}
	if got := lease("a", limit, Amount{Count: 6}, Amount{Count: 6}); got.Granted.Count != 6 {
		t.Errorf("the rest: got %+v", got)
	}
	empty := lease("a", limit, Amount{Count: 10}, Amount{Count: 10})
	if empty.Granted != (Amount{}) || empty.RetryIn <= 5*time.Second || empty.RetryIn > 10*time.Second {
		t.Errorf("an empty bucket: got %+v", empty)
	}
	if got := lease("b", limit, Amount{Count: 35}, Amount{Count: 35}); got.Granted.Count != 35 {
		t.Errorf("a large request: got %+v", got)
	}
	if got := lease("b", limit, Amount{Count: 1}, Amount{Count: 1}); got.RetryIn < 20*time.Second {
		t.Errorf("after a large request: got %+v", got)
	}
	both := Limit{PerSecond: Amount{1, 100}, Burst: 10 * time.Second}
	if got := lease("c", both, Amount{1, 1000}, Amount{5, 1000}); got != (Lease{Granted: Amount{5, 1000}}) {
		t.Errorf("both parts: got %+v", got)
	}
	if got := lease("c", both, Amount{1, 500}, Amount{1, 500}); got.Granted != (Amount{}) || got.RetryIn == 0 {
		t.Errorf("no bytes left: got %+v", got)
	}
	if ttl := c.Commands().PTTL(t.Context(), bucketKey(c.Keys(), "c")).Val(); ttl <= 0 || ttl > 30*time.Second {
		t.Errorf("got a TTL of %s", ttl)
	}
}

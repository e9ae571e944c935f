package lease

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func TestRun_OneHolderAtATime(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var wg sync.WaitGroup
	var holders, turns atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	for range 3 {
		b := open(t, s, redisconn.Options{})
		wg.Go(func() {
			_ = b.Lease("work", 3*time.Second).Run(ctx, func(ctx context.Context) error {
				if n := holders.Add(1); n != 1 {
					t.Errorf("got %d holders, want 1", n)
				}
				await.Duration(ctx, 100*time.Millisecond)
				holders.Add(-1)
				turns.Add(1)
				return nil
			})
		})
	}
	testkit.WaitFor(t, "several turns", func() bool { return turns.Load() > 3 })
	cancel()
	wg.Wait()
	n, err := open(t, s, redisconn.Options{}).Commands().Exists(t.Context(), "hubrelay:lease:work").Result()
	if n != 0 || err != nil {
		t.Errorf("lease after Run: got %d keys, %v, want none", n, err)
	}
}

func TestRun_CancelsWorkBeforeExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Second
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		// Redis answers once, and then hangs.
		_ = newFakeLease(t, ttl, &fakeRedis{times: 1}).Run(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			if held := time.Since(start); held != ttl-ttl/10 || !errors.Is(context.Cause(ctx), ErrLost) {
				t.Errorf("work ended after %s by %v, want %s and ErrLost", held, context.Cause(ctx), ttl-ttl/10)
			}
			cancel()
			return nil
		})
	})
}

func TestRun_RenewsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl, long = time.Second, time.Hour
		ctx, cancel := context.WithCancel(t.Context())
		_ = newFakeLease(t, ttl, &fakeRedis{times: math.MaxInt}).Run(ctx, func(ctx context.Context) error {
			if !await.Duration(ctx, long) {
				t.Errorf("work ended by %v", context.Cause(ctx))
			}
			cancel()
			return nil
		})
	})
}

// The holder of a lease trims the log, which frees memory.
func TestTryAcquire_FullRedis(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	if err := b.Commands().ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	l := b.Lease("x", time.Minute)
	value := l.m.newValue()
	for _, what := range []string{"acquire", "renew"} {
		if held, err := l.tryAcquire(t.Context(), value); err != nil || !held {
			t.Errorf("%s: got %t, %v, want the lease", what, held, err)
		}
	}
}

// If the clock of Redis was set back, the lease of a killed holder would not expire for hours.
func TestTryAcquire_ClockSetBack(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	l := b.Lease("x", time.Minute)
	if err := b.Commands().Set(t.Context(), l.key, "another holder", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	if held, err := l.tryAcquire(t.Context(), l.m.newValue()); err != nil || held {
		t.Errorf("got %t, %v, want false, because the holder may live", held, err)
	}
	if left := b.Commands().PTTL(t.Context(), l.key).Val(); left > time.Minute {
		t.Errorf("the lease lives for %s, want at most a minute", left)
	}
}

// After an error the next attempt comes sooner than while another process holds the lease.
func TestRun_RetriesSoonAfterError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		ctx, cancel := context.WithCancel(t.Context())
		start, calls := time.Now(), 0
		_ = newFakeLease(t, ttl, &fakeRedis{fails: 2, times: math.MaxInt}).Run(ctx, func(context.Context) error {
			if calls++; calls < 3 {
				return errors.New("the work failed")
			}
			cancel()
			return nil
		})
		if took := time.Since(start); took >= ttl/2 { // four pauses: two failed attempts and two failed calls
			t.Errorf("took %s, want less than %s", took, ttl/2)
		}
	})
}

// newFakeLease returns a lease in a fake Redis.
func newFakeLease(t *testing.T, ttl time.Duration, client *fakeRedis) *Lease {
	keys, err := keyspace.New("hubrelay", 1, false)
	if err != nil {
		t.Fatal(err)
	}
	m := &Manager{client: client, keys: keys, log: testkit.Log(t)}
	return m.Lease("work", ttl)
}

// fakeRedis fails first, then reports the lease as held, and then hangs.
type fakeRedis struct {
	redis.UniversalClient

	mu           sync.Mutex
	fails, times int
}

func (f *fakeRedis) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	answer := redis.NewCmd(ctx)
	f.mu.Lock()
	fails, hangs := f.fails > 0, f.times == 0
	if fails {
		f.fails--
	} else if !hangs {
		f.times--
	}
	f.mu.Unlock()
	switch {
	case fails:
		answer.SetErr(errors.New("connection refused"))
	case hangs:
		await.Duration(ctx, time.Hour)
	}
	answer.SetVal(int64(1))
	return answer
}

func TestRun_CancelsWorkWhenTaken(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_ = b.Lease("work", 100*time.Millisecond).Run(ctx, func(work context.Context) error {
		if err := b.Commands().Set(ctx, Key(b.Keys(), "work"), "another", 0).Err(); err != nil {
			t.Error(err)
		}
		<-work.Done()
		if !errors.Is(context.Cause(work), ErrLost) {
			t.Errorf("work ended by %v, want ErrLost", context.Cause(work))
		}
		cancel()
		return nil
	})
}

// The lease is held while the work stops after the end of its context, and the work notices if it is lost then.
func TestRunHeld_KeepsLeaseWhileWorkStops(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	const ttl = 30 * time.Second
	ctx, cancel := context.WithCancel(t.Context())
	_ = b.Lease("work", ttl).RunHeld(ctx, func(work, held context.Context) error {
		cancel()
		<-work.Done()
		if errors.Is(context.Cause(work), ErrLost) {
			t.Error("work ended by ErrLost, want the end of the caller's context")
		}
		left := func() time.Duration { return b.Commands().PTTL(t.Context(), Key(b.Keys(), "work")).Val() }
		last := left()
		testkit.WaitFor(t, "a renewal", func() bool {
			now := left()
			renewed := now > last
			last = now
			return renewed
		})
		if held.Err() != nil {
			t.Errorf("held ended by %v while the work was running", context.Cause(held))
		}
		if err := b.Commands().Set(t.Context(), Key(b.Keys(), "work"), "another", 0).Err(); err != nil {
			t.Error(err)
		}
		<-held.Done()
		if !errors.Is(context.Cause(held), ErrLost) {
			t.Errorf("held ended by %v, want ErrLost", context.Cause(held))
		}
		return nil
	})
}

func TestJoinNode_TakesLowestFreeNumber(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	join := func(b *testConn, want int) *Node {
		t.Helper()
		n, err := b.JoinNode(t.Context())
		if err != nil || n.Number != want {
			t.Fatalf("got node %+v, %v, want number %d", n, err, want)
		}
		t.Cleanup(n.Leave)
		return n
	}
	b := open(t, s, redisconn.Options{})
	first := join(b, 0)
	second := join(open(t, s, redisconn.Options{}), 1)
	if second.Name != "node-1" {
		t.Errorf("got name %s, want node-1", second.Name)
	}
	first.Leave()
	first.Leave()
	if names, err := b.ListNodes(t.Context()); err != nil || !slices.Equal(names, []string{"node-1"}) {
		t.Errorf("got nodes %v, %v, want only node-1", names, err)
	}
	join(b, 0)
	join(b, 2)
	if names, err := b.ListNodes(t.Context()); err != nil || !slices.Equal(names, []string{"node-0", "node-1", "node-2"}) {
		t.Errorf("got nodes %v, %v, want three", names, err)
	}
	// A single process takes over all leases at once.
	sole := open(t, s, redisconn.Options{SingleProcess: true})
	join(sole, 0)
	join(sole, 1)
	taken := make(chan struct{})
	if err := b.Commands().Set(t.Context(), Key(b.Keys(), "work"), "killed", 0).Err(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_ = sole.Lease("work", time.Second).Run(ctx, func(context.Context) error {
		close(taken)
		cancel()
		return nil
	})
	<-taken
}

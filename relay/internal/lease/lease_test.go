package lease

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func TestOneHolderAtATime(t *testing.T) {
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
					t.Errorf("%d holders", n)
				}
				relay.Sleep(ctx, 100*time.Millisecond)
				holders.Add(-1)
				turns.Add(1)
				return nil
			})
		})
	}
	testkit.WaitFor(t, "turns are taken", func() bool { return turns.Load() > 3 })
	cancel()
	wg.Wait()
	if n, err := open(t, s, redisconn.Options{}).Commands().Exists(t.Context(), "hubrelay:lease:work").Result(); n != 0 || err != nil {
		t.Errorf("the lease was not given back: %d, %v", n, err)
	}
}

func TestLeaseEndsBeforeItExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Second
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		_ = leaseOf(t, ttl, &holding{times: 1}).Run(ctx, func(ctx context.Context) error { // Redis answers the first time, and hangs
			<-ctx.Done()
			if held := time.Since(began); held != ttl-ttl/10 || !errors.Is(context.Cause(ctx), ErrLost) {
				t.Errorf("ended after %s by %v", held, context.Cause(ctx))
			}
			cancel()
			return nil
		})
	})
}

func TestLeaseIsRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl, long = time.Second, time.Hour
		ctx, cancel := context.WithCancel(t.Context())
		_ = leaseOf(t, ttl, &holding{times: math.MaxInt}).Run(ctx, func(ctx context.Context) error {
			if !relay.Sleep(ctx, long) {
				t.Errorf("ended by %v", context.Cause(ctx))
			}
			cancel()
			return nil
		})
	})
}

// Whoever waits for Redis to be back looks again sooner than whoever waits for another to be gone.
func TestLeaseIsTriedAgainSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		ctx, cancel := context.WithCancel(t.Context())
		began, failures := time.Now(), 0
		_ = leaseOf(t, ttl, &holding{fails: 2, times: math.MaxInt}).Run(ctx, func(context.Context) error {
			if failures++; failures < 3 {
				return errors.New("the work cannot begin yet")
			}
			cancel()
			return nil
		})
		if took := time.Since(began); took >= ttl/2 { // twice in vain, and two times the work was: four pauses
			t.Errorf("it took %s", took)
		}
	})
}

// leaseOf is a lease in a Redis that is not one.
func leaseOf(t *testing.T, ttl time.Duration, redis *holding) *Lease {
	keys, err := keyspace.New("hubrelay", 1, false)
	if err != nil {
		t.Fatal(err)
	}
	m := &Manager{client: redis, keys: keys, log: slog.New(slog.DiscardHandler)}
	return m.Lease("work", ttl)
}

// holding fails some times, says some times that the lease is held, and hangs then.
type holding struct {
	redis.UniversalClient

	mu           sync.Mutex
	fails, times int
}

func (h *holding) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	answer := redis.NewCmd(ctx)
	h.mu.Lock()
	fails, hangs := h.fails > 0, h.times == 0
	if fails {
		h.fails--
	} else if !hangs {
		h.times--
	}
	h.mu.Unlock()
	switch {
	case fails:
		answer.SetErr(errors.New("connection refused"))
	case hangs:
		relay.Sleep(ctx, time.Hour)
	}
	answer.SetVal(int64(1))
	return answer
}

func TestLeaseTakenAway(t *testing.T) {
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
			t.Errorf("ended by %v", context.Cause(work))
		}
		cancel()
		return nil
	})
}

// Work that winds down after the end of its context keeps the lease meanwhile, and learns when it is lost even then.
func TestLeaseIsKeptUntilTheWorkIsOver(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	const ttl = 6 * time.Second
	ctx, cancel := context.WithCancel(t.Context())
	_ = b.Lease("work", ttl).RunHeld(ctx, func(work, held context.Context) error {
		cancel()
		<-work.Done()
		if errors.Is(context.Cause(work), ErrLost) {
			t.Error("the end of the caller's context counts as a lost lease")
		}
		left := func() time.Duration { return b.Commands().PTTL(t.Context(), Key(b.Keys(), "work")).Val() }
		last := left()
		testkit.WaitFor(t, "it is renewed", func() bool {
			now := left()
			renewed := now > last
			last = now
			return renewed
		})
		if held.Err() != nil {
			t.Errorf("the lease was given up while the work went on: %v", context.Cause(held))
		}
		if err := b.Commands().Set(t.Context(), Key(b.Keys(), "work"), "another", 0).Err(); err != nil {
			t.Error(err)
		}
		<-held.Done()
		if !errors.Is(context.Cause(held), ErrLost) {
			t.Errorf("ended by %v", context.Cause(held))
		}
		return nil
	})
}

func TestNodes(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	join := func(b *testConn, want int) *Node {
		t.Helper()
		n, err := b.JoinNode(t.Context())
		if err != nil || n.Number != want {
			t.Fatalf("joined as %+v, %v, want %d", n, err, want)
		}
		t.Cleanup(n.Leave)
		return n
	}
	b := open(t, s, redisconn.Options{})
	first := join(b, 0)
	second := join(open(t, s, redisconn.Options{}), 1)
	if second.Name != "node-1" {
		t.Errorf("name %s", second.Name)
	}
	first.Leave()
	first.Leave()
	join(b, 0)
	join(b, 2)
	// An exclusive process knows that whoever left these leases is dead.
	sole := open(t, s, redisconn.Options{SingleProcess: true})
	join(sole, 0)
	join(sole, 1)
	taken := make(chan struct{})
	if err := b.Commands().Set(t.Context(), Key(b.Keys(), "work"), "the dead", 0).Err(); err != nil {
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

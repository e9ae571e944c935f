package admission

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// alwaysOn is the state of an active sink.
type alwaysOn struct{}

func (alwaysOn) Off() (bool, <-chan struct{}) { return false, nil }

// newTestAdmission returns an Admission with a rate in a new Redis. change may be nil.
func newTestAdmission(t *testing.T, change func(*Options)) (*Admission, redis.UniversalClient) {
	t.Helper()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{
		Network: "unix", Addr: server.Socket, MaxRetries: -1, Protocol: 2, DisableIdentity: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	keys, err := keyspace.New("hubrelay", 1, false)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Concurrency: 4, Rate: relay.Rate{Count: 10, Per: time.Hour}, RateKey: func() string { return "s" },
		Store: &store.New(client, keys).Rates, State: alwaysOn{}, Wake: func(time.Duration) {},
		OnOutage: func(bool, error) {}, OnCooldown: func(bool) {}, Now: time.Now,
	}
	if change != nil {
		change(&o)
	}
	a := New(t.Context(), o)
	t.Cleanup(a.Close)
	return a, client
}

func TestAdmission_ReturnsTokensOfCanceledAcquires(t *testing.T) {
	t.Parallel()
	a, client := newTestAdmission(t, func(o *Options) { o.Burst = 5 })
	ctx, cancel := context.WithCancel(t.Context())
	for range a.slots.size {
		if err := takeSlot(ctx, a.slots); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			var p Permit
			_ = a.Acquire(ctx, &p)
		})
	}
	testkit.WaitForValue(t, "all wait for a slot", 5, func() int {
		a.slots.mu.Lock()
		defer a.slots.mu.Unlock()
		return len(a.slots.queue.tickets)
	})
	cancel()
	wg.Wait()
	testkit.WaitForValue(t, "all tokens are returned", 0, func() int64 {
		return client.Exists(t.Context(), "hubrelay:rate:s").Val()
	})
	a.slots.releaseSlots(a.slots.size)
}

func TestAdmission_CloseReturnsReservedTokens(t *testing.T) {
	t.Parallel()
	a, client := newTestAdmission(t, nil)
	a.bucket.wakeWhenAvailable()
	testkit.WaitFor(t, "a token is reserved", func() bool { return !a.bucket.lacksReserved() })
	a.Close()
	if n := client.Exists(t.Context(), "hubrelay:rate:s").Val(); n != 0 {
		t.Error("the reserved token was lost")
	}
}

// Fresh deliveries and retries take and return slots and tokens in all ways at once. No slot is lost, none is used
// twice, no wakeup is lost, and both classes make progress.
func TestAdmission_NoUnitIsLost(t *testing.T) {
	t.Parallel()
	for name, rate := range map[string]relay.Rate{
		"without rate": {},
		"low rate":     {Count: 50, Per: 100 * time.Millisecond},
		"high rate":    {Count: 3000, Per: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkNoUnitIsLost(t, rate)
		})
	}
}

func checkNoUnitIsLost(t *testing.T, rate relay.Rate) {
	t.Helper()
	const size, enough = 3, 300
	wakeups := make(chan struct{}, 1)
	a, _ := newTestAdmission(t, func(o *Options) {
		o.Concurrency, o.Rate = size, rate
		o.Wake = func(time.Duration) {
			select {
			case wakeups <- struct{}{}:
			default:
			}
		}
	})
	var running, fresh, retries counter
	use := func(p *Permit, n *counter) {
		if p.Enter() {
			if running.add(1) > size {
				t.Error("more attempts than slots")
			}
			n.add(1)
			running.add(-1)
		}
		if n.load()%3 == 0 {
			p.Cancel()
			return
		}
		p.Done(context.Background(), true, nil)
	}
	deadline := time.Now().Add(testkit.Patience)
	done := make(chan struct{})
	var freshWork, retryWork sync.WaitGroup
	for worker := range 2 * size {
		freshWork.Go(func() {
			// A lost wakeup of the retries would let the fresh deliveries run until the deadline.
			for i := 0; time.Now().Before(deadline) && (fresh.load() < enough || retries.load() < enough); i++ {
				ctx, cancel := context.WithCancel(context.Background())
				if (i+worker)%5 == 0 {
					go cancel() // while it waits, or after that
				}
				var p Permit
				if a.Acquire(ctx, &p) == nil {
					use(&p, &fresh)
				}
				cancel()
			}
		})
	}
	retryWork.Go(func() {
		for {
			r := a.Reserve(size)
			n := r.Len()
			var claims sync.WaitGroup
			for range n {
				claims.Go(func() {
					p := a.ReservedPermit()
					use(&p, &retries)
				})
			}
			r.Close(n, true)
			claims.Wait()
			select {
			case <-done:
				a.Reserve(0).Close(0, false)
				return
			case <-wakeups:
			}
		}
	})
	freshWork.Wait()
	close(done)
	retryWork.Wait()
	if a.slots.free != size || a.slots.queue.reserved != 0 || len(a.slots.queue.tickets) != 0 {
		t.Errorf("got %d free and %d reserved slots, want %d and 0", a.slots.free, a.slots.queue.reserved, size)
	}
	if fresh.load() < enough || retries.load() < enough {
		t.Errorf("got %d fresh attempts and %d retries: one class starved", fresh.load(), retries.load())
	}
}

// counter may be used concurrently.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
	return c.n
}

func (c *counter) load() int { return c.add(0) }

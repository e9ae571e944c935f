package backbone

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
)

func TestOneHolderAtATime(t *testing.T) {
	s := redistest.Start(t)
	var wg sync.WaitGroup
	var holders, turns atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	for range 3 {
		b := open(t, s, Options{})
		wg.Go(func() {
			_ = b.Lease("work", 600*time.Millisecond).Run(ctx, func(ctx context.Context) error {
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				relay.Pause(ctx, 700*time.Millisecond) // longer than the lease, so that it is renewed
				if ctx.Err() != nil && errors.Is(context.Cause(ctx), ErrLeaseLost) {
					t.Error("the lease was lost")
				}
				holders.Add(-1)
				turns.Add(1)
				return nil
			})
		})
	}
	eventually(t, "turns are taken", func() bool { return turns.Load() > 3 })
	cancel()
	wg.Wait()
	if n, err := open(t, s, Options{}).Commands().Exists(t.Context(), "hubrelay:lease:work").Result(); n != 0 || err != nil {
		t.Errorf("the lease was not given back: %d, %v", n, err)
	}
}

func TestLeaseEndsBeforeItExpires(t *testing.T) {
	s := redistest.Start(t)
	b := open(t, s, Options{})
	const ttl = time.Second
	started := make(chan time.Time, 1)
	lost := make(chan time.Time, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.Lease("work", ttl).Run(ctx, func(ctx context.Context) error {
			started <- time.Now()
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), ErrLeaseLost) {
				t.Errorf("ended by %v", context.Cause(ctx))
			}
			lost <- time.Now()
			return nil
		})
	}()
	begun := <-started
	s.Signal(syscall.SIGSTOP) // redis hangs: no answer, no error
	if held := (<-lost).Sub(begun); held > ttl {
		t.Errorf("held for %s without an answer", held)
	}
	cancel()
	s.Signal(syscall.SIGCONT)
	<-done
}

func TestLeaseTakenAway(t *testing.T) {
	b := open(t, redistest.Start(t), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_ = b.Lease("work", 100*time.Millisecond).Run(ctx, func(work context.Context) error {
		if err := b.Commands().Set(ctx, b.keys.Lease("work"), "another", 0).Err(); err != nil {
			t.Error(err)
		}
		<-work.Done()
		if !errors.Is(context.Cause(work), ErrLeaseLost) {
			t.Errorf("ended by %v", context.Cause(work))
		}
		cancel()
		return nil
	})
}

// Work that winds down after the end of its context keeps the lease meanwhile, and learns when it is lost even then.
func TestLeaseIsKeptUntilTheWorkIsOver(t *testing.T) {
	b := open(t, redistest.Start(t), Options{})
	const ttl = 200 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	_ = b.Lease("work", ttl).RunHeld(ctx, func(work, held context.Context) error {
		cancel()
		<-work.Done()
		if errors.Is(context.Cause(work), ErrLeaseLost) {
			t.Error("the end of the caller's context counts as a lost lease")
		}
		for end := time.Now().Add(3 * ttl); time.Now().Before(end); relay.Pause(t.Context(), ttl/20) {
			if n, err := b.Commands().Exists(t.Context(), b.keys.Lease("work")).Result(); n != 1 || err != nil || held.Err() != nil {
				t.Fatalf("the lease was given up while the work went on: %d, %v, %v", n, err, held.Err())
			}
		}
		if err := b.Commands().Set(t.Context(), b.keys.Lease("work"), "another", 0).Err(); err != nil {
			t.Error(err)
		}
		<-held.Done()
		if !errors.Is(context.Cause(held), ErrLeaseLost) {
			t.Errorf("ended by %v", context.Cause(held))
		}
		return nil
	})
}

func TestNodes(t *testing.T) {
	s := redistest.Start(t)
	join := func(b *Backbone, want int) *Node {
		t.Helper()
		n, err := b.JoinNode(t.Context())
		if err != nil || n.Number != want {
			t.Fatalf("joined as %+v, %v, want %d", n, err, want)
		}
		t.Cleanup(n.Leave)
		return n
	}
	b := open(t, s, Options{})
	first := join(b, 0)
	second := join(open(t, s, Options{}), 1)
	if second.Name != "node-1" {
		t.Errorf("name %s", second.Name)
	}
	first.Leave()
	first.Leave()
	join(b, 0)
	join(b, 2)
	// An exclusive process knows that whoever left these leases is dead.
	sole := open(t, s, Options{Exclusive: true})
	join(sole, 0)
	join(sole, 1)
	taken := make(chan struct{})
	if err := b.Commands().Set(t.Context(), b.keys.Lease("work"), "the dead", 0).Err(); err != nil {
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

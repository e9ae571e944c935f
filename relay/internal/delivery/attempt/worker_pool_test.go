package attempt

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func (p *workerPool) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle)
}

type sinkFunc func(ctx context.Context, d relay.Delivery) error

func (f sinkFunc) Deliver(ctx context.Context, d relay.Delivery) error { return f(ctx, d) }

func (sinkFunc) Close() error { return nil }

func newTestRunner(deliver sinkFunc) *Runner {
	return NewRunner(Options{Sink: deliver, Timeout: 10 * time.Second, MaxAbandoned: 2, OnPanic: func(any, []byte) {}})
}

func TestRunner_SharesIdleWorkers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		enough := make(chan struct{})
		a := newTestRunner(func(_ context.Context, d relay.Delivery) error {
			switch d.ID {
			case "panics":
				panic("in a test")
			case "waits":
				<-enough
			}
			return nil
		})
		for _, id := range []string{"1", "panics", "2"} {
			if _, err := a.Run(t.Context(), relay.Delivery{ID: id}); (err != nil) != (id == "panics") {
				t.Errorf("%s: %v", id, err)
			}
			if n := a.workers.count(); n != 1 {
				t.Errorf("%d workers after %s, want one for all", n, id)
			}
		}
		done := make(chan error)
		for range 3 {
			go func() {
				_, err := a.Run(t.Context(), relay.Delivery{ID: "waits"})
				done <- err
			}()
		}
		synctest.Wait()
		close(enough)
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := a.workers.count(); n != 3 {
			t.Errorf("%d workers, want 3", n)
		}
		// One worker is used repeatedly, and the others are not needed.
		for range 5 {
			time.Sleep(workerIdleTimeout / 2)
			_, _ = a.Run(t.Context(), relay.Delivery{ID: "3"})
		}
		if n := a.workers.count(); n != 1 {
			t.Errorf("%d workers, want the busy one", n)
		}
		time.Sleep(2 * workerIdleTimeout)
		synctest.Wait()
		if n := a.workers.count(); n != 0 {
			t.Errorf("%d idle workers, want none", n)
		}
	})
}

func TestRunner_AbandonsWorkers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		enough := make(chan struct{})
		a := newTestRunner(func(ctx context.Context, d relay.Delivery) error {
			if d.ID == "stuck" {
				<-enough
				return errors.New("too late")
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if _, err := a.Run(t.Context(), relay.Delivery{ID: "stuck"}); !errors.Is(err, errAbandoned) {
			t.Errorf("Run() of a sink that never returns = %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := a.Run(ctx, relay.Delivery{ID: "slow"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run() after the timeout = %v", err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := a.Run(ended, relay.Delivery{ID: "slow"}); !errors.Is(err, context.Canceled) {
			t.Errorf("Run() with a canceled context = %v", err)
		}
		if n := a.abandoned.Load(); n != 1 {
			t.Errorf("%d are stuck", n)
		}
		close(enough)
		synctest.Wait()
		if a.abandoned.Load() != 0 || a.running.Load() != 0 {
			t.Errorf("%d stuck, %d running", a.abandoned.Load(), a.running.Load())
		}
		a.workers.close()
		synctest.Wait()
		if n := a.workers.count(); n != 0 {
			t.Errorf("%d workers after close", n)
		}
	})
}

// Calls share a context only if it leaves them their full time, and none gets one that has ended.
func TestRunner_ContextOfCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		a := newTestRunner(func(ctx context.Context, d relay.Delivery) error {
			ends, ok := ctx.Deadline()
			if left := time.Until(ends); !ok || left < 10*time.Second ||
				left > 10*time.Second+timeoutSlack(10*time.Second) {
				t.Errorf("%s has %s", d.ID, left)
			}
			if ctx.Err() != nil || ctx.Value(key{}) != d.ID {
				t.Errorf("%s: %v, %v", d.ID, ctx.Err(), ctx.Value(key{}))
			}
			if d.ID == "slow" {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			time.Sleep(30 * time.Millisecond)
			return nil
		})
		a.timeoutErr = errors.New("late")
		for _, id := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "slow", "11"} {
			_, err := a.Run(context.WithValue(t.Context(), key{}, id), relay.Delivery{ID: id})
			if want := map[bool]error{true: a.timeoutErr}[id == "slow"]; !errors.Is(err, want) {
				t.Errorf("%s: %v", id, err)
			}
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		quick := newTestRunner(func(ctx context.Context, _ relay.Delivery) error { return context.Cause(ctx) })
		for _, ctx := range []context.Context{t.Context(), gone, t.Context()} {
			if _, err := quick.Run(ctx, relay.Delivery{ID: "q"}); ctx != gone && err != nil {
				t.Errorf("Run() after a canceled one = %v", err)
			}
		}
		a.workers.close()
		quick.workers.close()
	})
}

// A result two seconds after the timeout counts, because sink exec needs that time to kill its command.
func TestRunner_ResultAfterTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := errors.New("the command was killed")
		for _, want := range []error{slow, nil} {
			a := newTestRunner(func(ctx context.Context, _ relay.Delivery) error {
				<-ctx.Done()
				time.Sleep(2 * time.Second)
				return want
			})
			a.o.MaxAbandoned = 1
			if _, err := a.Run(t.Context(), relay.Delivery{ID: "a"}); !errors.Is(err, want) || a.abandoned.Load() != 0 {
				t.Errorf("%v and %d stuck, want %v", err, a.abandoned.Load(), want)
			}
			a.workers.close()
		}
	})
}

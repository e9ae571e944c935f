package brokers

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// fakeConn is a connection that accepts all messages.
type fakeConn struct{ cancelableLifetime }

func (*fakeConn) Publish(string, ...*message.Message) error { return nil }
func (f *fakeConn) Close() error                            { f.kill(nil); return nil }

func TestReconnector_DialsOnceAtATimeWithPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var dials []time.Duration
		startedAt, up := time.Now(), false
		r := newReconnector(func(context.Context) (brokerConn, error) {
			dials = append(dials, time.Since(startedAt))
			time.Sleep(10 * time.Millisecond)
			if !up {
				return nil, errors.New("refused")
			}
			return &fakeConn{newLifetime()}, nil
		}, testkit.Log(t))
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if _, err := r.connection(t.Context()); err == nil || err.Error() != "refused" {
					t.Errorf("got %v", err)
				}
			})
		}
		wg.Wait()
		if len(dials) != 1 {
			t.Fatalf("100 deliveries: got %d dials, want 1", len(dials))
		}
		for range 8 {
			_, _ = r.connection(t.Context())
		}
		for i, want := range []time.Duration{0, 60, 170, 380, 790, 1600, 3210, 5220, 7230} {
			if dials[i] != want*time.Millisecond {
				t.Errorf("dial %d: got %s, want %s", i, dials[i], want*time.Millisecond)
			}
		}
		up = true
		c, err := r.connection(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := r.connection(t.Context()); again != c {
			t.Error("the connection was not reused")
		}
		if f, ok := c.(*fakeConn); ok {
			f.kill(nil)
		}
		other, err := r.connection(t.Context())
		if err != nil || other == c {
			t.Errorf("a lost connection was reused (%v)", err)
		}
		r.close(t.Context())
		if _, err := r.connection(t.Context()); !errors.Is(err, errClosed) {
			t.Errorf("after close: got %v", err)
		}
		r.close(t.Context())
	})
}

func TestReconnector_WaitEndsWithAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReconnector(func(ctx context.Context) (brokerConn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, testkit.Log(t))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		startedAt := time.Now()
		if _, err := r.connection(ctx); err == nil || time.Since(startedAt) != time.Second {
			t.Errorf("got %v after %s", err, time.Since(startedAt))
		}
		r.close(t.Context())
	})
}

func TestReconnector_RejectsConnectionAfterDialTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		late := &fakeConn{newLifetime()}
		r := newReconnector(func(ctx context.Context) (brokerConn, error) {
			<-ctx.Done() // libraries close their connection now
			return late, nil
		}, testkit.Log(t))
		if _, err := r.connection(t.Context()); !errors.Is(err, errConnectedLate) {
			t.Errorf("got %v", err)
		}
		if late.lifetime().Err() == nil {
			t.Error("the late connection is open")
		}
		r.close(t.Context())
	})
}

func TestReconnector_DialEndsWithAttempt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		r := newReconnector(nil, testkit.Log(t))
		r.dial = &dialResult{done: make(chan struct{}), err: errors.New("refused")}
		close(r.dial.done)
		if _, err := r.connection(ctx); err == nil || err.Error() != "refused" {
			t.Fatalf("got %v", err)
		}
	}
}

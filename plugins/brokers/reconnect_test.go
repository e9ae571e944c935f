package brokers

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// fake is a connection that takes everything.
type fake struct{ cancelableLifetime }

func (*fake) Publish(string, ...*message.Message) error { return nil }
func (f *fake) Close() error                            { f.kill(nil); return nil }

func TestLinkDialsOnceAndAgainWithPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var dials []time.Duration
		begun, up := time.Now(), false
		l := newLink(func(context.Context) (brokerConn, error) {
			dials = append(dials, time.Since(begun))
			time.Sleep(10 * time.Millisecond)
			if !up {
				return nil, errors.New("refused")
			}
			return &fake{newMortal()}, nil
		}, slog.New(slog.DiscardHandler))
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if _, err := l.connection(t.Context()); err == nil || err.Error() != "refused" {
					t.Errorf("got %v", err)
				}
			})
		}
		wg.Wait()
		if len(dials) != 1 {
			t.Fatalf("100 deliveries made %d dials", len(dials))
		}
		for range 8 {
			_, _ = l.connection(t.Context())
		}
		for i, want := range []time.Duration{0, 60, 170, 380, 790, 1600, 3210, 5220, 7230} {
			if dials[i] != want*time.Millisecond {
				t.Errorf("dial %d was at %s, not %s", i, dials[i], want*time.Millisecond)
			}
		}
		up = true
		c, err := l.connection(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := l.connection(t.Context()); again != c {
			t.Error("a good connection was not used again")
		}
		if f, ok := c.(*fake); ok {
			f.kill(nil)
		}
		other, err := l.connection(t.Context())
		if err != nil || other == c {
			t.Errorf("a dead connection was used again (%v)", err)
		}
		l.close(t.Context())
		if _, err := l.connection(t.Context()); !errors.Is(err, errClosed) {
			t.Errorf("behind the end: %v", err)
		}
		l.close(t.Context())
	})
}

func TestLinkWaitsNoLongerThanTheAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLink(func(ctx context.Context) (brokerConn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if _, err := l.connection(ctx); err == nil || time.Since(begun) != time.Second {
			t.Errorf("got %v after %s", err, time.Since(begun))
		}
		l.close(t.Context())
	})
}

func TestLinkWantsNoConnectionBehindTheTimeOfItsDial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		late := &fake{newMortal()}
		l := newLink(func(ctx context.Context) (brokerConn, error) {
			<-ctx.Done() // when libraries close what they have
			return late, nil
		}, slog.New(slog.DiscardHandler))
		if _, err := l.connection(t.Context()); err == nil || err.Error() != "no connection within 5s" {
			t.Errorf("got %v", err)
		}
		if late.lifetime().Err() == nil {
			t.Error("the late connection is left open")
		}
		l.close(t.Context())
	})
}

func TestLinkTakesADialThatEndsWithTheAttempt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		l := newLink(nil, slog.New(slog.DiscardHandler))
		l.dial = &dialResult{done: make(chan struct{}), err: errors.New("refused")}
		close(l.dial.done)
		if _, err := l.connection(ctx); err == nil || err.Error() != "refused" {
			t.Fatalf("got %v", err)
		}
	}
}

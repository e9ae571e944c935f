package deliver

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func (s *callers) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.idle)
}

func newAttempts(answer func(ctx context.Context, d relay.Delivery) error) *attempts {
	return &attempts{
		sink: &fakeSink{answer: answer}, timeout: 10 * time.Second, most: 2,
		panics: func(any, []byte) {},
	}
}

func TestAttemptsShareCallersThatEndWhenIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		enough := make(chan struct{})
		a := newAttempts(func(_ context.Context, d relay.Delivery) error {
			switch d.ID {
			case "panics":
				panic("in a test")
			case "waits":
				<-enough
			}
			return nil
		})
		for _, id := range []string{"1", "panics", "2"} {
			if err := a.make(t.Context(), relay.Delivery{ID: id}); (err != nil) != (id == "panics") {
				t.Errorf("%s: %v", id, err)
			}
			if n := a.callers.count(); n != 1 {
				t.Errorf("%d callers after %s, want one for all", n, id)
			}
		}
		done := make(chan error)
		for range 3 {
			go func() { done <- a.make(t.Context(), relay.Delivery{ID: "waits"}) }()
		}
		synctest.Wait()
		close(enough)
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := a.callers.count(); n != 3 {
			t.Errorf("%d callers, want 3", n)
		}
		// One of them is used again and again, the others are not needed.
		for range 5 {
			time.Sleep(keptIdle / 2)
			_ = a.make(t.Context(), relay.Delivery{ID: "3"})
		}
		if n := a.callers.count(); n != 1 {
			t.Errorf("%d callers, want the one that has work", n)
		}
		time.Sleep(2 * keptIdle)
		synctest.Wait()
		if n := a.callers.count(); n != 0 {
			t.Errorf("%d callers, and nothing to do", n)
		}
	})
}

func TestCallerThatWasLeftBehindTakesNothingMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		enough := make(chan struct{})
		a := newAttempts(func(ctx context.Context, d relay.Delivery) error {
			if d.ID == "stuck" {
				<-enough
				return errors.New("too late")
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if err := a.make(t.Context(), relay.Delivery{ID: "stuck"}); !errors.Is(err, errIgnored) {
			t.Errorf("a sink that never returns: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := a.make(ctx, relay.Delivery{ID: "slow"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an attempt that takes too long: %v", err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if err := a.make(ended, relay.Delivery{ID: "slow"}); !errors.Is(err, context.Canceled) {
			t.Errorf("an attempt whose caller has no time: %v", err)
		}
		if n := a.stuck.Load(); n != 1 {
			t.Errorf("%d are stuck", n)
		}
		close(enough)
		synctest.Wait()
		if a.stuck.Load() != 0 || a.running.Load() != 0 {
			t.Errorf("%d stuck, %d running", a.stuck.Load(), a.running.Load())
		}
		a.callers.close()
		synctest.Wait()
		if n := a.callers.count(); n != 0 {
			t.Errorf("%d callers after the end", n)
		}
	})
}

// Attempts share a caller's context only while it leaves them their whole time, and none gets one that has ended.
func TestAttemptsHaveTheirTimeAndTheirValues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		a := newAttempts(func(ctx context.Context, d relay.Delivery) error {
			ends, ok := ctx.Deadline()
			if left := time.Until(ends); !ok || left < 10*time.Second || left > 10*time.Second+slack(10*time.Second) {
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
		a.late = errors.New("late")
		for _, id := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "slow", "11"} {
			err := a.make(context.WithValue(t.Context(), key{}, id), relay.Delivery{ID: id})
			if want := map[bool]error{true: a.late}[id == "slow"]; !errors.Is(err, want) {
				t.Errorf("%s: %v", id, err)
			}
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		quick := newAttempts(func(ctx context.Context, _ relay.Delivery) error { return context.Cause(ctx) })
		for _, ctx := range []context.Context{t.Context(), gone, t.Context()} {
			if err := quick.make(ctx, relay.Delivery{ID: "q"}); ctx != gone && err != nil {
				t.Errorf("after one whose caller was gone: %v", err)
			}
		}
		a.callers.close()
		quick.callers.close()
	})
}

// What a sink knows two seconds behind the end of its time counts: exec has to kill its command by then, and wait for it.
func TestAnswerBehindTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := errors.New("the command was killed")
		for _, want := range []error{slow, nil} {
			a := newAttempts(func(ctx context.Context, _ relay.Delivery) error {
				<-ctx.Done()
				time.Sleep(2 * time.Second)
				return want
			})
			a.most = 1
			if err := a.make(t.Context(), relay.Delivery{ID: "a"}); !errors.Is(err, want) || a.stuck.Load() != 0 {
				t.Errorf("%v and %d stuck, want %v", err, a.stuck.Load(), want)
			}
			a.callers.close()
		}
	})
}

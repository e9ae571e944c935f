package daemon

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"testing"
	"testing/synctest"
	"time"
)

func TestPartsStopInReverse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newParts(slog.New(slog.DiscardHandler))
		var stopped []string
		for _, name := range []string{"redis", "dispatch", "http"} {
			p.startComponent(t.Context(), name, func(ctx context.Context) error {
				<-ctx.Done()
				stopped = append(stopped, name)
				return nil
			})
		}
		p.stop(time.Minute)
		if want := []string{"http", "dispatch", "redis"}; !reflect.DeepEqual(stopped, want) {
			t.Errorf("stopped in the order %v, want %v", stopped, want)
		}
	})
}

func TestPartsOneEndEndsAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newParts(slog.New(slog.DiscardHandler))
		broken := errors.New("broken")
		p.startComponent(t.Context(), "well", func(ctx context.Context) error { <-ctx.Done(); return nil })
		p.startComponent(t.Context(), "ill", func(context.Context) error { return broken })
		if err := p.wait(t.Context()); !errors.Is(err, broken) {
			t.Errorf("wait returned %v, want %v", err, broken)
		}
		p.stop(time.Minute)
	})
}

func TestPartsOutliveTheSignal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newParts(slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		alive := false
		p.startComponent(ctx, "one", func(inner context.Context) error {
			<-ctx.Done()
			alive = inner.Err() == nil
			<-inner.Done()
			return nil
		})
		cancel()
		if err := p.wait(ctx); err != nil {
			t.Errorf("wait returned %v after the signal", err)
		}
		synctest.Wait()
		p.stop(time.Minute)
		if !alive {
			t.Error("the part ended with the signal instead of with stop")
		}
	})
}

func TestPartsGiveUpOnOneThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newParts(slog.New(slog.DiscardHandler))
		release := make(chan struct{})
		p.startComponent(t.Context(), "hangs", func(context.Context) error { <-release; return nil })
		begin := time.Now()
		p.stop(3 * time.Second)
		if took := time.Since(begin); took != 3*time.Second {
			t.Errorf("stop took %v, want the grace of 3s", took)
		}
		close(release)
	})
}

// A part that hangs uses up the grace. What stands below it, our own redis-server at last, must still be stopped in
// order, and not left behind half-way because the time is over.
func TestPartsBelowOneThatHangsAreStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newParts(slog.New(slog.DiscardHandler))
		var stopped []string
		for _, name := range []string{"redis", "backbone"} {
			p.startComponent(t.Context(), name, func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Second)
				stopped = append(stopped, name)
				return nil
			})
		}
		release := make(chan struct{})
		p.startComponent(t.Context(), "hangs", func(context.Context) error { <-release; return nil })
		p.stop(3 * time.Second)
		if want := []string{"backbone", "redis"}; !reflect.DeepEqual(stopped, want) {
			t.Errorf("stopped %v, want %v", stopped, want)
		}
		close(release)
	})
}

func TestTogetherStopsSideBySide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return ctx.Err()
		}
		p := newParts(slog.New(slog.DiscardHandler))
		p.startComponent(t.Context(), "log", runTogether([]task{{"one", slow}, {"two", slow}, {"three", slow}}))
		begin := time.Now()
		p.stop(time.Minute)
		if took := time.Since(begin); took != time.Second {
			t.Errorf("stop took %v, want 1s", took)
		}
	})
}

func TestTogetherOneEndEndsAll(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  error
		want string
	}{
		"an error":    {errors.New("broken"), "two: broken"},
		"without one": {nil, "two: ended by itself"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := runTogether([]task{
					{"one", func(ctx context.Context) error { <-ctx.Done(); return nil }},
					{"two", func(context.Context) error { return c.end }},
				})(t.Context())
				if err == nil || err.Error() != c.want {
					t.Errorf("got %v, want %s", err, c.want)
				}
			})
		})
	}
}

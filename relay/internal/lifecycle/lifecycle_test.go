package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestGroup_StopInReverse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(testkit.Log(t))
		var stopped []string
		for _, name := range []string{"redis", "dispatch", "http"} {
			g.Start(t.Context(), name, func(ctx context.Context) error {
				<-ctx.Done()
				stopped = append(stopped, name)
				return nil
			})
		}
		g.StopInReverse(time.Minute, time.Second)
		if want := []string{"http", "dispatch", "redis"}; !reflect.DeepEqual(stopped, want) {
			t.Errorf("stopped in the order %v, want %v", stopped, want)
		}
	})
}

func TestGroup_OneFailureStopsAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(testkit.Log(t))
		broken := errors.New("broken")
		g.Start(t.Context(), "well", func(ctx context.Context) error { <-ctx.Done(); return nil })
		g.Start(t.Context(), "ill", func(context.Context) error { return broken })
		if err := g.Wait(t.Context()); !errors.Is(err, broken) {
			t.Errorf("wait returned %v, want %v", err, broken)
		}
		g.StopInReverse(time.Minute, time.Second)
	})
}

func TestGroup_IgnoreEndOfContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(testkit.Log(t))
		ctx, cancel := context.WithCancel(t.Context())
		alive := false
		g.Start(ctx, "one", func(inner context.Context) error {
			<-ctx.Done()
			alive = inner.Err() == nil
			<-inner.Done()
			return nil
		})
		cancel()
		if err := g.Wait(ctx); err != nil {
			t.Errorf("wait returned %v after the end of the context", err)
		}
		synctest.Wait()
		g.StopInReverse(time.Minute, time.Second)
		if !alive {
			t.Error("the component ended with the context instead of with stop")
		}
	})
}

func TestGroup_AbandonHangingComponent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(testkit.Log(t))
		release := make(chan struct{})
		g.Start(t.Context(), "hangs", func(context.Context) error { <-release; return nil })
		begin := time.Now()
		g.StopInReverse(3*time.Second, time.Second)
		if elapsed := time.Since(begin); elapsed != 3*time.Second {
			t.Errorf("stop elapsed %v, want the grace of 3s", elapsed)
		}
		close(release)
	})
}

// A component that hangs uses the whole grace period. The components before it, such as the embedded Redis, must
// still be stopped in order.
func TestGroup_StopThoseBeforeHangingComponent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(testkit.Log(t))
		var stopped []string
		for _, name := range []string{"redis", "backbone"} {
			g.Start(t.Context(), name, func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Second)
				stopped = append(stopped, name)
				return nil
			})
		}
		release := make(chan struct{})
		g.Start(t.Context(), "hangs", func(context.Context) error { <-release; return nil })
		g.StopInReverse(3*time.Second, 5*time.Second)
		if want := []string{"backbone", "redis"}; !reflect.DeepEqual(stopped, want) {
			t.Errorf("stopped %v, want %v", stopped, want)
		}
		close(release)
	})
}

func TestRun_StopsConcurrently(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		outer, inner := NewGroup(testkit.Log(t)), NewGroup(testkit.Log(t))
		for _, name := range []string{"one", "two", "three"} {
			inner.Start(t.Context(), name, func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Second)
				return ctx.Err()
			})
		}
		outer.Start(t.Context(), "log", inner.Run)
		begin := time.Now()
		outer.StopInReverse(time.Minute, time.Second)
		if elapsed := time.Since(begin); elapsed != time.Second {
			t.Errorf("stop elapsed %v, want 1s", elapsed)
		}
	})
}

func TestRun_OneFailureStopsAll(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  error
		want string
	}{
		"an error":    {errors.New("broken"), "two: broken"},
		"without one": {nil, "two: stopped unexpectedly"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewGroup(testkit.Log(t))
				g.Start(t.Context(), "one", func(ctx context.Context) error { <-ctx.Done(); return nil })
				g.Start(t.Context(), "two", func(context.Context) error { return c.end })
				if err := g.Run(t.Context()); err == nil || err.Error() != c.want {
					t.Errorf("got %v, want %s", err, c.want)
				}
			})
		})
	}
}

// A sink can be added by a reload while the daemon stops.
func TestStart_IgnoresComponentOfStoppingGroup(t *testing.T) {
	t.Parallel()
	g := NewGroup(testkit.Log(t))
	g.StopInReverse(time.Minute, time.Second)
	c := g.Start(t.Context(), "late", func(context.Context) error {
		t.Error("the component was started")
		return nil
	})
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestGroup_LogsLaterFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Buffer
		g := NewGroup(slog.New(slog.NewTextHandler(&log, nil)))
		first, second := errors.New("first"), errors.New("second")
		g.Start(t.Context(), "one", func(context.Context) error { return first })
		synctest.Wait()
		g.Start(t.Context(), "two", func(context.Context) error { return second })
		synctest.Wait()
		if err := g.Wait(t.Context()); !errors.Is(err, first) {
			t.Errorf("got %v, want %v", err, first)
		}
		g.StopInReverse(time.Minute, time.Second)
		if got := log.String(); !strings.Contains(got, `msg="component failed" component=two error=second`) ||
			strings.Contains(got, "first") {
			t.Errorf("got log %s", got)
		}
	})
}

// A component that fails after the end of the context is logged, because Wait has already returned.
func TestGroup_LogsFailureAfterEndOfContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Buffer
		g := NewGroup(slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Wait(ctx); err != nil {
			t.Errorf("got %v", err)
		}
		g.Start(t.Context(), "one", func(context.Context) error { return errors.New("broken") })
		synctest.Wait()
		g.StopInReverse(time.Minute, time.Second)
		if !strings.Contains(log.String(), `msg="component failed" error="one: broken"`) {
			t.Errorf("got log %s", log.String())
		}
	})
}

func TestStop_EndsOneComponent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(testkit.Log(t))
		wait := func(ctx context.Context) error { <-ctx.Done(); return nil }
		one := g.Start(t.Context(), "one", wait)
		g.Start(t.Context(), "two", wait)
		if err := one.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if len(g.running) != 1 {
			t.Errorf("got %d running components, want 1", len(g.running))
		}
		g.StopInReverse(time.Minute, time.Second)
		if g.failure != nil {
			t.Errorf("a stopped component counts as failed: %v", g.failure)
		}
	})
}

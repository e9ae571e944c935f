package daemon

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestComponents_StopInReverse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newComponents(testkit.Log(t))
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

func TestComponents_OneFailureStopsAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newComponents(testkit.Log(t))
		broken := errors.New("broken")
		p.startComponent(t.Context(), "well", func(ctx context.Context) error { <-ctx.Done(); return nil })
		p.startComponent(t.Context(), "ill", func(context.Context) error { return broken })
		if err := p.wait(t.Context()); !errors.Is(err, broken) {
			t.Errorf("wait returned %v, want %v", err, broken)
		}
		p.stop(time.Minute)
	})
}

func TestComponents_IgnoreEndOfContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newComponents(testkit.Log(t))
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
			t.Errorf("wait returned %v after the end of the context", err)
		}
		synctest.Wait()
		p.stop(time.Minute)
		if !alive {
			t.Error("the component ended with the context instead of with stop")
		}
	})
}

func TestComponents_AbandonHangingComponent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newComponents(testkit.Log(t))
		release := make(chan struct{})
		p.startComponent(t.Context(), "hangs", func(context.Context) error { <-release; return nil })
		begin := time.Now()
		p.stop(3 * time.Second)
		if elapsed := time.Since(begin); elapsed != 3*time.Second {
			t.Errorf("stop elapsed %v, want the grace of 3s", elapsed)
		}
		close(release)
	})
}

// A component that hangs uses the whole grace period. The components before it, such as the embedded Redis, must
// still be stopped in order.
func TestComponents_StopThoseBeforeHangingComponent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newComponents(testkit.Log(t))
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

func TestRunTogether_StopsConcurrently(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return ctx.Err()
		}
		p := newComponents(testkit.Log(t))
		p.startComponent(t.Context(), "log", runTogether([]task{{"one", slow}, {"two", slow}, {"three", slow}}))
		begin := time.Now()
		p.stop(time.Minute)
		if elapsed := time.Since(begin); elapsed != time.Second {
			t.Errorf("stop elapsed %v, want 1s", elapsed)
		}
	})
}

func TestRunTogether_OneFailureStopsAll(t *testing.T) {
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

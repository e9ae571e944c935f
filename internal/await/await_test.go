package await_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
)

// A select chooses at random between ready cases, so the test repeats.
func TestValue_PrefersResultOverEndedContext(t *testing.T) {
	t.Parallel()
	cause := errors.New("too late")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for range 50 {
		results := make(chan int, 1)
		if n, err := await.Value(ended, results); !errors.Is(err, cause) || n != 0 {
			t.Fatalf("empty channel: got %d, %v, want 0, %v", n, err, cause)
		}
		results <- 7
		if n, err := await.Value(ended, results); err != nil || n != 7 {
			t.Fatalf("buffered value: got %d, %v, want 7", n, err)
		}
		close(results)
		if n, err := await.Value(ended, results); err != nil || n != 0 {
			t.Fatalf("closed channel: got %d, %v, want 0", n, err)
		}
	}
}

func TestDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if !await.Duration(t.Context(), time.Hour) || time.Since(start) != time.Hour {
			t.Errorf("Duration waited %s, want 1h", time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if start = time.Now(); await.Duration(ctx, time.Hour) || time.Since(start) != time.Minute {
			t.Errorf("Duration waited %s, want 1m", time.Since(start))
		}
	})
}

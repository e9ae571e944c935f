package relay

import (
	"context"
	"errors"
	"testing"
)

// A select chooses at random between ready cases, so the test repeats.
func TestAwait_PrefersResultOverEndedContext(t *testing.T) {
	t.Parallel()
	cause := errors.New("too late")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for range 50 {
		results := make(chan int, 1)
		if n, err := Await(ended, results); !errors.Is(err, cause) || n != 0 {
			t.Fatalf("empty channel: got %d, %v, want 0, %v", n, err, cause)
		}
		results <- 7
		if n, err := Await(ended, results); err != nil || n != 7 {
			t.Fatalf("buffered value: got %d, %v, want 7", n, err)
		}
		close(results)
		if n, err := Await(ended, results); err != nil || n != 0 {
			t.Fatalf("closed channel: got %d, %v, want 0", n, err)
		}
	}
}

package relay

import (
	"context"
	"testing"
)

// A select chooses at random between ready cases, so the test repeats.
func TestAwait_PrefersResultOverEndedContext(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		results := make(chan int, 1)
		if n, ok := Await(ended, results); ok || n != 0 {
			t.Fatalf("empty channel: got %d, %v, want 0, false", n, ok)
		}
		results <- 7
		if n, ok := Await(ended, results); !ok || n != 7 {
			t.Fatalf("buffered value: got %d, %v, want 7, true", n, ok)
		}
		close(results)
		if n, ok := Await(ended, results); !ok || n != 0 {
			t.Fatalf("closed channel: got %d, %v, want 0, true", n, ok)
		}
	}
}

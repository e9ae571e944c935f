package relay

import (
	"context"
	"testing"
)

// Go chooses by chance between what is ready, so this is tried often.
func TestAwait(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		answers := make(chan int, 1)
		if n, there := Await(ended, answers); there || n != 0 {
			t.Fatalf("%d has come, %v, of nothing", n, there)
		}
		answers <- 7
		if n, there := Await(ended, answers); !there || n != 7 {
			t.Fatalf("%d has come, %v, of an answer that was there", n, there)
		}
		close(answers)
		if n, there := Await(ended, answers); !there || n != 0 {
			t.Fatalf("%d has come, %v, of a channel that is closed", n, there)
		}
	}
}

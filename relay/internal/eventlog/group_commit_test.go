package eventlog

import (
	"context"
	"errors"
	"testing"
)

// The caller receives an error and may append the notification again, so it must not be stored later.
func TestGroupCommit_DropsCanceledEntry(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	flushed := make(chan []entry, 10)
	c := &groupCommit{flush: func(_ context.Context, batch []entry) {
		flushed <- batch
		<-release
		for _, e := range batch {
			e.done <- nil
		}
	}}
	first := make(chan error, maxConcurrentCommits)
	for range maxConcurrentCommits {
		go func() { first <- c.commitEntry(context.Background(), entry{log: "first"}) }()
		<-flushed
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.commitEntry(ctx, entry{log: "canceled"}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want context.Canceled", err)
	}
	close(release)
	for range maxConcurrentCommits {
		if err := <-first; err != nil {
			t.Fatal(err)
		}
	}
	if err := c.commitEntry(context.Background(), entry{log: "last"}); err != nil {
		t.Fatal(err)
	}
	close(flushed)
	for batch := range flushed {
		for _, e := range batch {
			if e.log == "canceled" {
				t.Error("the canceled entry was stored")
			}
		}
	}
}

package eventlog

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// A server of a cluster that does not respond delays only the writes to its partitions.
func TestAppend_PartitionsOfClusterAreIndependent(t *testing.T) {
	t.Parallel()
	l := openOptions(t, redisconn.Options{URL: redistest.StartClusterNode(t), Partitions: 2})
	hubs := make([]string, 2) // by partition
	for i := 0; hubs[0] == "" || hubs[1] == ""; i++ {
		hub := strconv.Itoa(i)
		hubs[l.keys.Partition(hub)] = hub
	}
	stuck, release := make(chan struct{}, maxConcurrentCommits), make(chan struct{})
	l.groupCommits[0].flush = func(ctx context.Context, batch []entry) {
		stuck <- struct{}{}
		<-release
		l.flushBatch(ctx, batch)
	}
	appendOne := func(partition int) error {
		hub := hubs[partition]
		_, err := l.Append(t.Context(), AppendRequest{Hub: hub, Notifications: notifications(hub, 1, 1)})
		return err
	}
	results := make(chan error, maxConcurrentCommits)
	for range maxConcurrentCommits {
		go func() { results <- appendOne(0) }()
		<-stuck
	}
	if err := appendOne(1); err != nil {
		t.Error(err)
	}
	close(release)
	for range maxConcurrentCommits {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

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

package backbone

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
)

func TestQueueLengths(t *testing.T) {
	server := redistest.Start(t)
	b := open(t, server, Options{Partitions: 2})
	ctx := t.Context()
	for _, queue := range append(b.Keys().Queues("a"), b.Keys().Queue("a", 1), b.Keys().Queue("c", 0)) {
		if err := b.Commands().Do(ctx, "XADD", queue, "*", "id", "1").Err(); err != nil {
			t.Fatal(err)
		}
	}
	got, err := b.QueueLengths(ctx, []string{"a", "b", "c"})
	if diff := cmp.Diff([]int64{3, 0, 1}, got); diff != "" || err != nil {
		t.Errorf("lengths (-want +got), error %v:\n%s", err, diff)
	}
	server.Kill()
	if _, err := b.QueueLengths(ctx, nil); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without Redis and sinks: %v, want ErrUnavailable", err)
	}
}

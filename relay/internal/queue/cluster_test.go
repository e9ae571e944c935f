package queue

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

func TestClusterFromLogToSubscriber(t *testing.T) {
	t.Parallel()
	const partitions = 3
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	b := newTestStores(conntest.OpenOptions(t, redisconn.Options{URL: redistest.StartClusterNode(t), Partitions: partitions}))
	sub, err := subscriber.New(subscriber.Config{
		Commands: b.Commands(), Readers: b.Readers(), Group: "g", Consumer: "c",
		Streams: b.streams, Slot: b.Keys().Slot,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Close() }()
	messages, err := sub.Subscribe(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	for p := range partitions {
		hub := ""
		for i := 0; hub == "" || b.Keys().Partition(hub) != p; i++ {
			hub = fmt.Sprint("h", i)
		}
		mustAppend(t, b, notification(hub, 2*p))
		if _, err := b.Append(ctx, eventlog.AppendRequest{Hub: hub, Key: "k", Digest: "d", Notifications: notifications(hub, 2*p+1, 2*p+1)}); err != nil {
			t.Fatal(err)
		}
		serving, err := b.RegisterSinks(ctx, p, map[string]bool{"s": true})
		if err != nil {
			t.Fatal(err)
		}
		log := readLog(t, b, p)
		e := EnqueueRequest{Partition: p, From: serving.Position, To: log[1].Cursor, Sinks: []string{"s"}, MaxBacklogs: []int64{0}, EntriesCovered: 2}
		e.Matches = []SinkMatch{{ID: log[0].Cursor, Sinks: []int{0}}, {ID: log[1].Cursor, Sinks: []int{0}}}
		if r, err := b.Enqueue(ctx, e); err != nil || !r.Committed {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	seen := map[string]bool{}
	for len(seen) < 2*partitions {
		select {
		case m := <-messages:
			seen[m.UUID] = true
			m.Ack()
		case <-ctx.Done():
			t.Fatalf("only %d came", len(seen))
		}
	}
}

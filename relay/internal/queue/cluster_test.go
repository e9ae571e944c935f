package queue

import (
	"context"
	"fmt"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

func TestCluster_FromLogToSubscriber(t *testing.T) {
	t.Parallel()
	const partitions = 3
	o := redisconn.Options{URL: redistest.StartClusterNode(t), Partitions: partitions}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	b := newTestStores(conntest.OpenOptions(t, o))
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
		list := notifications(hub, 2*p+1, 2*p+1)
		a := eventlog.AppendRequest{Hub: hub, Client: "c", Key: "k", Digest: "d", Notifications: list}
		if _, err := b.Append(ctx, a); err != nil {
			t.Fatal(err)
		}
		state, err := b.RegisterSinks(ctx, p, map[string]bool{"s": true})
		if err != nil {
			t.Fatal(err)
		}
		log := readLog(t, b, p)
		r := EnqueueRequest{
			Partition: p, From: state.Position, To: log[1].Cursor, EntriesCovered: 2,
			Sinks:   []string{"s"},
			Matches: []SinkMatch{{ID: log[0].Cursor, Sinks: []int{0}}, {ID: log[1].Cursor, Sinks: []int{0}}},
		}
		if r, err := b.Enqueue(ctx, r); err != nil || !r.Committed {
			t.Fatalf("enqueue: got %+v, %v", r, err)
		}
	}
	seen := map[string]bool{}
	for len(seen) < 2*partitions {
		select {
		case m := <-messages:
			seen[m.UUID] = true
			m.Ack()
		case <-ctx.Done():
			t.Fatalf("got %d messages, want %d", len(seen), 2*partitions)
		}
	}
}

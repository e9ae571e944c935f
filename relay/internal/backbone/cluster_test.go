package backbone

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
)

// A cluster refuses a command over several slots even where one node holds them all.
func startCluster(t *testing.T) string {
	t.Helper()
	port, bus := redistest.FreePort(t), redistest.FreePort(t)
	s := redistest.Start(t, "--port", port, "--cluster-enabled", "yes", "--cluster-port", bus)
	admin := s.Client()
	const clusterSlots = 16384
	for slot := 0; slot < clusterSlots; slot += 1024 {
		args := []any{"CLUSTER", "ADDSLOTS"}
		for i := range 1024 {
			args = append(args, slot+i)
		}
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return "redis+cluster://127.0.0.1:" + port
}

func TestClusterFromLogToSubscriber(t *testing.T) {
	t.Parallel()
	const partitions = 3
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	b, err := Open(ctx, Options{URL: startCluster(t), Partitions: partitions})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	sub, err := NewSubscriber(SubscriberConfig{
		Commands: b.Commands(), Readers: b.Readers(), Group: "g", Consumer: "c",
		Streams: b.Keys().Queues, Slot: b.Keys().Slot,
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
		mustAppend(t, b, note(hub, 2*p))
		if _, err := b.Append(ctx, AppendRequest{Hub: hub, Key: "k", Digest: "d", Notifications: notes(hub, 2*p+1, 2*p+1)}); err != nil {
			t.Fatal(err)
		}
		serving, err := b.RegisterSinks(ctx, p, map[string]bool{"s": true})
		if err != nil {
			t.Fatal(err)
		}
		log := logOf(t, b, p)
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

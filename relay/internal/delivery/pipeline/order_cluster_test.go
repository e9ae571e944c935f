package pipeline

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// A cluster rejects a script with keys of several slots, even if one node has all of them.
func TestOrder_Cluster(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--cluster-enabled", "yes")
	client := redis.NewClient(
		&redis.Options{Network: "unix", Addr: server.Socket, MaxRetries: -1, Protocol: 2, DisableIdentity: true},
	)
	defer func() { _ = client.Close() }()
	if err := client.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "the cluster is up", func() bool { return client.Set(t.Context(), "up", 1, 0).Err() == nil })
	keys, err := keyspace.New("hubrelay", 1, true)
	if err != nil {
		t.Fatal(err)
	}
	e := &env{t: t, server: server, client: client, store: store.New(client, keys)}
	const hubs, each = 3, 30
	var got successes
	rejects := func(d relay.Delivery) bool { return d.ID == "hub1-000007" && got.count() < hubs*each-1 }
	p := e.pipeline(got.around(func(_ context.Context, d relay.Delivery) error {
		if rejects(d) {
			return relay.Permanent(errFar)
		}
		return flaky(t.Context(), d)
	}), ordered(store.OrderingHub))
	q := newQueue(hubs, each)
	stop, _ := e.lead(p, q)
	testkit.WaitFor(t, "all but one arrived", func() bool { return got.count() == hubs*each-1 && q.length() == 0 })
	if c, err := e.replayAllDeadLetters(store.ReplayOptions{Ordering: store.OrderingHub}); err != nil ||
		c.Done != 1 {
		t.Fatal(c, err)
	}
	testkit.WaitForValue(t, "the last one too", hubs*each, func() int { return got.count() })
	one := []store.Scheduled{{ID: "x", Body: "{}", OrderingKey: fmt.Sprintf("%024d", 1)}}
	if _, _, err := e.store.Retries.ScheduleAll(t.Context(), "s", 0, one); err != nil {
		t.Error(err)
	}
	stop() // it stores statistics
	if err := e.store.Forget(t.Context(), "s", true); err != nil {
		t.Error(err)
	}
	left, err := client.Keys(t.Context(), "hubrelay:*{s}*").Result()
	if err != nil || len(left) != 0 {
		t.Errorf("%v is left after the sink was forgotten, %v", left, err)
	}
}

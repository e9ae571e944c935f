package brokers

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay"
)

// TestSink_RedisCluster publishes to streams on all masters of a cluster, while a slot moves and after a master was
// killed.
func TestSink_RedisCluster(t *testing.T) {
	t.Parallel()
	masters, replicas, _ := redistest.StartCluster(t)
	servers := masters
	r := rig{config: Config{
		Broker: Redis, Cluster: true, Stream: "events:{hub}",
		Addresses: []string{"127.0.0.1:" + masters[0].Port, "127.0.0.1:" + masters[1].Port},
	}}
	holders := map[int]bool{}
	r.read = func(t *testing.T) []received {
		t.Helper()
		var all []received
		for i, m := range servers {
			for hub := range 7 {
				key := fmt.Sprintf("events:hub_%d", hub)
				list, err := m.Admin.XRange(t.Context(), key, "-", "+").Result()
				if err != nil {
					if redis.HasErrorPrefix(err, "MOVED") {
						continue
					}
					t.Fatal(err)
				}
				for _, e := range list {
					holders[i] = true
					all = append(all, received{
						name: key, id: fmt.Sprint(e.Values["id"]), payload: fmt.Sprint(e.Values["data"]),
					})
				}
			}
		}
		return all
	}
	alone := r.config
	alone.Cluster, alone.Addresses, alone.Stream = false, alone.Addresses[:1], "events:{account}"
	if slot := masters[0].Admin.ClusterKeySlot(t.Context(), "events:a").Val(); slot < 16384/3 {
		t.Fatalf("the stream is in slot %d of the first master", slot)
	}
	expectFailure(t, alone, relay.OutcomeRetry, "set cluster: true")
	s := startSink(t, r.config)
	next := 0
	publish := func() map[string]relay.Delivery {
		want := map[string]relay.Delivery{}
		for range 28 {
			d := newDelivery(next)
			next++
			want[d.ID] = d
			r.expectRecovery(t, s, d)
		}
		return want
	}
	for id, got := range r.waitForAll(t, publish()) {
		if len(got) != 1 {
			t.Errorf("got %s %d times", id, len(got))
		}
	}
	if len(holders) != 3 {
		t.Fatalf("%d masters have a stream, want 3", len(holders))
	}
	slot := int(masters[0].Admin.ClusterKeySlot(t.Context(), "events:hub_0").Val())
	from := slot * 3 / 16384
	redistest.MoveSlot(t, &masters[from], &masters[(from+1)%3], slot)
	r.waitForAll(t, publish())

	masters[2].Kill()
	replicas[2].TakeOver()
	servers = []redistest.Member{masters[0], masters[1], replicas[2]}
	r.waitForAll(t, publish())
}

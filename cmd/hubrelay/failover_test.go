package main_test

import (
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
)

// failoverHubs are so many that each of three partitions has some.
const failoverHubs = 12

// failover is two nodes on a Redis that has replicas, producers that insist, and a webhook.
type failover struct {
	t         *testing.T
	gate      *gate
	hooks     *receiver
	nodes     []*atomic.Pointer[daemon]
	producers []*insistent
}

func newFailover(t *testing.T, url string) *failover {
	t.Helper()
	f := &failover{t: t, gate: newGate()}
	t.Cleanup(f.gate.open)
	f.hooks = receive(t, func(w http.ResponseWriter, h hook) {
		f.gate.pass()
		if crc32.ChecksumIEEE([]byte(h.id))%5 == 0 && h.attempt == 1 { // some need a second one
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	text := setup{
		redis: fmt.Sprintf("url: %q, partitions: 3", url),
		sinks: webhookSink("hook", f.hooks.url+"/", ", timeout: 5s"),
	}
	for range 2 {
		node := &atomic.Pointer[daemon]{}
		node.Store(serve(t, text))
		f.nodes = append(f.nodes, node)
	}
	f.produce("before")
	return f
}

// produce starts a producer for each of some hubs, which are in several partitions.
func (f *failover) produce(name string) {
	for i := range failoverHubs {
		f.producers = append(f.producers, insistOn(f.t, fmt.Sprintf("hub-%d", i), fmt.Sprintf("%s-%d", name, i), f.nodes))
	}
}

func (f *failover) goesOn(what string) {
	f.t.Helper()
	for _, p := range f.producers[len(f.producers)-failoverHubs:] {
		eventually(f.t, "more to be accepted "+what, p.more(10))
	}
}

// rest lets the producers end, with deliveries in hand, and returns when the replicas have everything.
func (f *failover) rest(primaries []*redis.Client) {
	f.t.Helper()
	f.gate.shut()
	f.goesOn("while the webhook hangs")
	for _, p := range f.producers {
		p.end()
	}
	for _, c := range primaries {
		eventually(f.t, "the replica to have everything", func() error {
			n, err := c.Do(f.t.Context(), "WAIT", 1, 1000).Int()
			if err == nil && n < 1 {
				err = fmt.Errorf("%d have it", n)
			}
			return err
		})
	}
}

// judge demands that the webhook took everything that was accepted.
func (f *failover) judge() {
	f.t.Helper()
	f.gate.open()
	taken := make(map[string]int)
	for _, p := range f.producers {
		p.end()
		for _, id := range p.accepted {
			taken[id] = 0
		}
	}
	eventually(f.t, "every webhook", f.hooks.took("/", slices.Collect(maps.Keys(taken))))
	twice := 0
	for _, h := range f.hooks.of("/") {
		if _, accepted := taken[h.id]; !accepted {
			f.t.Errorf("%s came and was never accepted", h.id)
		}
		if h.status/100 != 2 {
			continue
		}
		if taken[h.id]++; taken[h.id] == 2 {
			twice++
		}
	}
	f.t.Logf("%d accepted, all came, %d of them more than once", len(taken), twice)
}

// TestDeliveriesOverAClusterFailover kills a master below deliveries in hand, and moves a slot below traffic: what was
// accepted and replicated is delivered, and what is accepted later too.
func TestDeliveriesOverAClusterFailover(t *testing.T) {
	t.Parallel()
	masters, replicas, url := redistest.StartCluster(t)
	f := newFailover(t, url)
	f.goesOn("at first")
	f.rest([]*redis.Client{masters[0].Admin, masters[1].Admin, masters[2].Admin})
	masters[2].Kill()
	replicas[2].AwaitMaster()
	f.gate.open()
	f.produce("after")
	f.goesOn("by the new master")

	log := masters[0].Admin.Keys(t.Context(), "hubrelay:log:*").Val()
	if len(log) != 1 {
		t.Fatalf("the first master has %q", log)
	}
	slot := masters[0].Admin.ClusterKeySlot(t.Context(), log[0]).Val()
	redistest.MoveSlot(t, &masters[0], &masters[1], int(slot))
	f.goesOn("behind the moved slot")
	f.judge()
}

// TestDeliveriesOverASentinelFailover does the same where Sentinel chooses the new primary.
func TestDeliveriesOverASentinelFailover(t *testing.T) {
	t.Parallel()
	port := redistest.FreePort(t)
	primary, replica := redistest.StartPair(t, port)
	f := newFailover(t, redistest.StartSentinels(t, port))
	f.goesOn("at first")
	f.rest([]*redis.Client{primary.Client()})
	primary.Kill()
	replica.AwaitMaster()
	f.gate.open()
	f.produce("after")
	f.goesOn("by the new primary")
	f.judge()
}

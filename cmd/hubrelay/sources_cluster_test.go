package main_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// inCluster returns a client of a cluster in which some servers may be down.
func inCluster(t *testing.T, members ...redistest.Member) *redis.ClusterClient {
	t.Helper()
	o := &redis.ClusterOptions{DisableIdentity: true}
	for _, m := range members {
		o.Addrs = append(o.Addrs, "127.0.0.1:"+m.Port)
	}
	c := redis.NewClusterClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestLongSourceOverAClusterFailover kills each master in turn while two nodes read an upstream and replicas take
// over. The log contains each number once and in the order of its hub, and the webhook receives all of them.
func TestLongSourceOverAClusterFailover(t *testing.T) {
	t.Parallel()
	masters, replicas, url := redistest.StartCluster(t)
	var up atomic.Pointer[daemon]
	up.Store(serve(t, daemonConfig{redis: `url: "memory:"`}))
	hooks := receive(t, nil)
	lower := daemonConfig{
		redis: fmt.Sprintf("url: %q, partitions: 3, min_replicas: 1", url), sinks: webhookSink("hook", hooks.url+"/",
			", timeout: 5s"),
		keys: upstreamSource("http://"+up.Load().Public, ""),
	}
	nodes := []*daemon{serve(t, lower), serve(t, lower)}
	testkit.Eventually(t, "the source", nodes[0].connectedSource(t))

	var hubs []string
	for i := range failoverHubs {
		hubs = append(hubs, fmt.Sprintf("hub-%d", i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	done, stop := context.WithCancel(ctx)
	defer stop()
	published := make([]int, len(hubs))
	var publishing sync.WaitGroup
	for i, hub := range hubs {
		publishing.Go(func() {
			for first := 1; done.Err() == nil; first += 10 {
				if err := publishNumbersFrom(ctx, &up, hub, first, first+9, 4, 10*time.Millisecond); err != nil {
					t.Error(err)
					return
				}
				published[i] = first + 9
			}
		})
	}
	store := inCluster(t, append(masters, replicas...)...)
	stored := func() (n float64) {
		for _, d := range nodes {
			n += d.Metric(t, `hubrelay_source_messages_total{result="stored",source="upstream"}`)
		}
		return n
	}
	goesOn := func(what string) {
		before := stored()
		testkit.Eventually(t, "more from the upstream "+what, func() error {
			if n := stored(); n < before+100 {
				return fmt.Errorf("%v were stored, and %v before", n, before)
			}
			return nil
		})
	}
	goesOn("at first")
	for i := range masters {
		masters[i].Kill()
		replicas[i].TakeOver()
		masters[i].Restart() // as a replica; without one nothing is accepted
		goesOn(fmt.Sprintf("after the failover of master %d", i))
	}
	stop()
	publishing.Wait()

	for i, hub := range hubs {
		checkNumbers(t, store, []string{hub}, published[i])
	}
	testkit.Eventually(t, "every webhook", func() error {
		came := make(map[string]bool)
		for _, h := range hooks.of("/") {
			came[objectID(h.body)] = true
		}
		for i, hub := range hubs {
			for n := 1; n <= published[i]; n++ {
				if !came[fmt.Sprintf("%s/%d", hub, n)] {
					return fmt.Errorf("%s/%d has not come", hub, n)
				}
			}
		}
		return nil
	})
	if s := nodes[1].sources(t)[0]; s.Gaps != 0 || s.Quarantined != 0 {
		t.Errorf("%+v", s)
	}
}

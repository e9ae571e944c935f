package brokers

import (
	"context"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Debian has no package for Kafka. These tests run against kfake, a broker in this process that implements Kafka's
// protocol, including idempotent producers.

// newKafkaRig starts a cluster of three brokers.
func newKafkaRig(t *testing.T, opts ...kfake.Opt) (rig, *kfake.Cluster) {
	t.Helper()
	opts = append([]kfake.Opt{kfake.NumBrokers(3), kfake.SeedTopics(4,
		"hubrelay.container.created", "hubrelay.hubrelay.digest", "hubrelay.container.state.changed")}, opts...)
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	c := Config{Broker: Kafka, Addresses: cluster.ListenAddrs(), Topic: "hubrelay.{topic}", Key: keyContainer}
	return rig{config: c}, cluster
}

// newKafkaReader starts a consumer and returns a function that returns its records so far.
func newKafkaReader(t *testing.T, addresses []string, see func(*kgo.Record)) func(*testing.T) []received {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses...), kgo.ConsumeTopics("^hubrelay.*"), kgo.ConsumeRegex(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var all []received
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				mu.Lock()
				defer mu.Unlock()
				metadata := map[string]string{"key": string(r.Key)}
				for _, h := range r.Headers {
					metadata[h.Key] = string(h.Value)
				}
				all = append(all, received{r.Topic, metadata[headerID], string(r.Value), metadata})
				if see != nil {
					see(r)
				}
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		client.Close()
	})
	return func(*testing.T) []received {
		mu.Lock()
		defer mu.Unlock()
		return append([]received(nil), all...)
	}
}

func headerValue(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func TestKafka(t *testing.T) {
	t.Parallel()
	r, cluster := newKafkaRig(t)
	r.read = newKafkaReader(t, cluster.ListenAddrs(), nil)
	runSuite(t, r)
}

// TestSink_KafkaOutage lets all brokers of the cluster close connections instead of responding, for a while.
func TestSink_KafkaOutage(t *testing.T) {
	t.Parallel()
	r, cluster := newKafkaRig(t)
	r.read = newKafkaReader(t, cluster.ListenAddrs(), nil)
	down := newOutageSwitch(cluster)
	r.kill, r.restart = down.on, down.off
	r.testOutage(t)
}

// TestSink_KafkaHang lets all brokers accept produce requests without responding, for a while.
func TestSink_KafkaHang(t *testing.T) {
	t.Parallel()
	r, cluster := newKafkaRig(t)
	var mu sync.Mutex
	thawed := make(chan struct{})
	close(thawed)
	r.freeze = func(frozen bool) {
		mu.Lock()
		defer mu.Unlock()
		if frozen {
			thawed = make(chan struct{})
		} else {
			close(thawed)
		}
	}
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		mu.Lock()
		c := thawed
		mu.Unlock()
		cluster.SleepControl(func() { <-c })
		return nil, nil, false
	})
	r.testHang(t)
}

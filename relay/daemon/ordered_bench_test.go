package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

// countingSink accepts every delivery immediately.
type countingSink struct{ n atomic.Int64 }

func (s *countingSink) Deliver(context.Context, relay.Delivery) error {
	s.n.Add(1)
	return nil
}

func (s *countingSink) Close() error { return nil }

// BenchmarkOrdering measures how fast a daemon delivers a backlog of a thousand hubs to a sink that accepts every
// delivery immediately, with and without ordering.
func BenchmarkOrdering(b *testing.B) {
	for _, ordering := range []string{"none", "hub", "container"} {
		b.Run(ordering, func(b *testing.B) {
			sink := &countingSink{}
			server := redistest.Start(b)
			admin := startBenchDaemon(b, server.URL(), sink, "ordering: "+ordering)
			s := openRedis(b, server)
			callAdmin(b, admin, "POST", "/api/sinks/one/pause", "")
			const hubs = 1000
			for from := 0; from < b.N; from += hubs {
				for i := range min(hubs, b.N-from) {
					hub := fmt.Sprintf("%024d", i)
					n := relay.Notification{
						ID: fmt.Sprintf("%024d", from+i), Topic: "container.created", Hub: hub,
						Data: []byte(`{"topic":"container.created","object":{"id":"` + hub +
							`","state":"new","error":""},"context":{"hub_id":"` +
							hub +
							`","account_id":"","environments":[],"dns_zones":[],"clusters":["one"],"containers":["` +
							hub + `"]}}`),
					}
					if _, err := s.log.Append(b.Context(), eventlog.AppendRequest{
						Hub: hub, Notifications: []relay.Notification{n},
					}); err != nil {
						b.Fatal(err)
					}
				}
			}
			testkit.WaitFor(b, "all are queued", func() bool {
				n, err := s.queues.Stats(b.Context(), []string{"one"})
				return err == nil && n[0].Length == int64(b.N)
			})
			b.ResetTimer()
			callAdmin(b, admin, "POST", "/api/sinks/one/resume", "")
			testkit.WaitFor(b, "all are delivered", func() bool { return sink.n.Load() >= int64(b.N) })
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
		})
	}
}

// startBenchDaemon runs a daemon with one sink until the benchmark ends, and returns the address of its admin API.
func startBenchDaemon(b *testing.B, redis string, sink relay.Sink, settings string) (admin net.Addr) {
	b.Helper()
	kind := relay.SinkKind{
		Type: "memory", Config: func() relay.Config { return &noConfig{} },
		Open: func(relay.SinkSettings, relay.Config) (relay.Sink, error) { return sink, nil },
	}
	file := filepath.Join(b.TempDir(), "hubrelay.yaml")
	text := fmt.Sprintf(`server: {listen: "127.0.0.1:0"}
health: {listen: "127.0.0.1:0"}
redis: {url: %q}
auth: {keys: [{name: ops, key: %s, hubs: ["*"]}]}
sinks: {one: {type: memory, %s}}
`, redis, testKey, settings)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	cfg, err := config.Load(file, nil, config.Kinds{Sinks: []relay.SinkKind{kind}})
	if err != nil {
		b.Fatal(err)
	}
	ready := make(chan Addresses, 1)
	a, err := New(cfg, Options{
		Log: slog.New(slog.DiscardHandler), Sinks: []relay.SinkKind{kind}, Ready: func(at Addresses) { ready <- at },
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			b.Error(err)
		}
	})
	return (<-ready).Admin
}

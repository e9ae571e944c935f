package pipeline

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// BenchmarkBatch measures one notification in a batch of a hundred: collecting, sealing, the attempt and its outcome.
func BenchmarkBatch(b *testing.B) {
	server := redistest.Start(b)
	client := redis.NewClient(
		&redis.Options{
			Network:         "unix",
			Addr:            server.Socket,
			MaxRetries:      -1,
			Protocol:        2,
			DisableIdentity: true,
			PoolSize:        64,
		},
	)
	defer func() { _ = client.Close() }()
	p, err := New(Options{
		Name: "s", Sink: &silentSink{}, Store: store.New(client, testKeys()),
		Batch: Batch{Wait: 100 * time.Millisecond, Max: 100},
	})
	if err != nil {
		b.Fatal(err)
	}
	var lanes sync.WaitGroup
	next := make(chan int)
	for range p.opts.Batch.HandlerConcurrency(p.opts.Concurrency) {
		lanes.Go(func() {
			for i := range next {
				if err := handleDelivery(b.Context(), p, event(i, "a.b", "h1")); err != nil {
					b.Error(err)
				}
			}
		})
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		next <- i
	}
	close(next)
	lanes.Wait()
	if err := p.Close(context.Background()); err != nil {
		b.Error(err)
	}
}

type silentSink struct{}

func (*silentSink) Deliver(context.Context, relay.Delivery) error { return nil }
func (*silentSink) Close() error                                  { return nil }

package subscriber_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

// BenchmarkSubscriber reads a full queue and acks each message at once.
func BenchmarkSubscriber(b *testing.B) {
	for _, c := range []struct{ workers, unflushed, idle int }{
		{1, 256, 0}, {16, 256, 0}, {16, 16, 0}, {256, 256, 0}, {16, 256, 1000},
	} {
		name := fmt.Sprintf("workers=%d/unflushed=%d/idle-topics=%d", c.workers, c.unflushed, c.idle)
		b.Run(name, func(b *testing.B) {
			benchmarkSubscriber(b, c.workers, c.unflushed, c.idle)
		})
	}
}

func benchmarkSubscriber(b *testing.B, workers, unflushed, idle int) {
	server := redistest.Start(b, "--appendfsync", "everysec")
	commands, readers := newClient(b, server.Socket), newClient(b, server.Socket)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	fillStream(b, server.Socket, "queue", b.N)

	sub, err := subscriber.New(subscriber.Config{
		Commands: commands, Readers: readers, Group: "sinks", Consumer: "node-0",
		MaxInFlight: func(string) int { return workers }, MaxUnflushedAcks: func(string) int { return unflushed },
	})
	if err != nil {
		b.Fatal(err)
	}
	for i := range idle {
		if _, err := sub.Subscribe(ctx, fmt.Sprintf("idle-%d", i)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	messages, err := sub.Subscribe(ctx, "queue")
	if err != nil {
		b.Fatal(err)
	}
	for range b.N {
		m := <-messages
		m.Ack()
	}
	if err := sub.Close(); err != nil { // stores the acks
		b.Fatal(err)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	if n := commands.XLen(b.Context(), "queue").Val(); n != 0 {
		b.Fatalf("got %d entries after Close, want 0", n)
	}
}

// fillStream appends n entries like the dispatcher, with about 300 bytes of data.
func fillStream(b *testing.B, socket, stream string, n int) {
	b.Helper()
	c := newClient(b, socket)
	data := `{"topic":"container.instance.state.changed",` +
		`"object":{"id":"65f0a1b2c3d4e5f601234567","state":"","error":""},"x":"` +
		strings.Repeat("x", 180) + `"}`
	for i := 0; i < n; {
		pipe := c.Pipeline()
		for range min(1000, n-i) {
			pipe.Do(b.Context(), "XADD", stream, "*", "id", fmt.Sprintf("%024x", i),
				"topic", "container.instance.state.changed", "hub", "65f0a1b2c3d4e5f601234560",
				"account", "65f0a1b2c3d4e5f601234561", "data", data)
			i++
		}
		if _, err := pipe.Exec(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

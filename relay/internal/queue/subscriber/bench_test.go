package subscriber_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

// BenchmarkSubscriber reads a queue that was filled before, acking each message as it comes.
func BenchmarkSubscriber(b *testing.B) {
	for _, c := range []struct{ lanes, unstored, idle int }{{1, 256, 0}, {16, 256, 0}, {16, 16, 0}, {256, 256, 0}, {16, 256, 1000}} {
		b.Run(fmt.Sprintf("lanes=%d/unstored=%d/idle-topics=%d", c.lanes, c.unstored, c.idle), func(b *testing.B) {
			benchmarkSubscriber(b, c.lanes, c.unstored, c.idle)
		})
	}
}

func benchmarkSubscriber(b *testing.B, lanes, unstored, idle int) {
	server := redistest.Start(b, "--appendfsync", "everysec")
	commands, readers := newClient(b, server.Socket), newClient(b, server.Socket)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	fill(b, server.Socket, "queue", b.N)

	sub, err := subscriber.New(subscriber.Config{
		Commands: commands, Readers: readers, Group: "sinks", Consumer: "node-0",
		MaxInFlight: func(string) int { return lanes }, MaxUnflushedAcks: func(string) int { return unstored },
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
	if err := sub.Close(); err != nil { // waits for the acks
		b.Fatal(err)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	if n := commands.XLen(b.Context(), "queue").Val(); n != 0 {
		b.Fatalf("%d entries left", n)
	}
}

// fill appends n entries as the dispatcher writes them, with about 300 bytes of data.
func fill(b *testing.B, socket, stream string, n int) {
	b.Helper()
	c := newClient(b, socket)
	data := `{"topic":"container.instance.state.changed","object":{"id":"65f0a1b2c3d4e5f601234567","state":"","error":""},"x":"` +
		strings.Repeat("x", 180) + `"}`
	for i := 0; i < n; {
		pipe := c.Pipeline()
		for range min(1000, n-i) {
			pipe.Do(b.Context(), "XADD", stream, "*", "id", fmt.Sprintf("%024x", i), "topic", "container.instance.state.changed",
				"hub", "65f0a1b2c3d4e5f601234560", "account", "65f0a1b2c3d4e5f601234561", "data", data)
			i++
		}
		if _, err := pipe.Exec(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

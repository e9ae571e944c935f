package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	ownMessages  = 300_000
	peerMessages = 30_000
	stream       = "bench:messages"
	group        = "bench"
)

// measureSubscriber lets our Subscriber and its peer consume a full stream, one after the other, and acknowledge each
// message at once. The median of three rounds counts: the peer mostly waits for Redis, and its wake-up times vary.
func measureSubscriber(ctx context.Context, r *rig) ([]row, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(300)) // like the daemon, and here for the peer too
	ownFields := []string{"id", entryID, "topic", "container.instance.state.changed", "data", event}
	peerFields := []string{"_watermill_message_uuid", entryID, "metadata", "", "payload", event}
	rounds := make([]row, 3)
	for i := range rounds {
		own, err := r.consumeStream(ctx, ownMessages, ownFields, ownSubscriber)
		if err != nil {
			return nil, fmt.Errorf("our subscriber: %w", err)
		}
		peer, err := r.consumeStream(ctx, peerMessages, peerFields, peerSubscriber)
		if err != nil {
			return nil, fmt.Errorf("watermill-redisstream: %w", err)
		}
		rounds[i] = newRow("Watermill Subscriber", own, "messages/s",
			"watermill-redisstream 1.4.5", peer).ratioAtLeast(10)
	}
	return []row{medianRatio(rounds)}, nil
}

// consumeStream fills the stream with n entries with these fields, and returns the number of consumed messages per
// second.
func (r *rig) consumeStream(
	ctx context.Context, n int, fields []string, open func(*rig) (message.Subscriber, func(), error),
) (float64, error) {
	if err := r.redis.flush(); err != nil {
		return 0, err
	}
	if err := r.fillStream(stream, n, fields); err != nil {
		return 0, err
	}
	sub, done, err := open(r)
	if err != nil {
		return 0, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	startedAt := time.Now()
	messages, err := sub.Subscribe(ctx, stream)
	if err != nil {
		return 0, err
	}
	for got := range n {
		m, ok := <-messages
		if !ok {
			return 0, fmt.Errorf("got %d of %d messages: %w", got, n, context.Cause(ctx))
		}
		if len(m.Payload) != len(event) {
			return 0, errors.New("got a message with another payload")
		}
		m.Ack()
	}
	return float64(n) / time.Since(startedAt).Seconds(), nil
}

// fillStream appends n entries to a stream. Its group starts at the first entry.
func (r *rig) fillStream(stream string, n int, fields []string) error {
	c, err := r.redis.dial()
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.runCommand("XGROUP", "CREATE", stream, group, "0", "MKSTREAM"); err != nil {
		return err
	}
	const batch = 1000
	one := appendCommand(nil, append([]string{"XADD", stream, "*"}, fields...)...)
	for range n / batch {
		if err := c.runPipeline(repeatBytes(one, batch), batch); err != nil {
			return err
		}
	}
	return nil
}

func repeatBytes(b []byte, n int) []byte {
	all := make([]byte, 0, n*len(b))
	for range n {
		all = append(all, b...)
	}
	return all
}

func ownSubscriber(r *rig) (message.Subscriber, func(), error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := redisconn.Open(ctx, redisconn.Options{URL: r.redis.redisURL()})
	if err != nil {
		return nil, nil, err
	}
	sub, err := subscriber.New(subscriber.Config{
		Commands: c.Commands(), Readers: c.Readers(), Group: group, Consumer: "bench",
		MaxInFlight: func(string) int { return 16 }, // the default concurrency of a sink
	})
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return sub, func() {
		_ = sub.Close()
		c.Close()
	}, nil
}

func peerSubscriber(r *rig) (message.Subscriber, func(), error) {
	client := redis.NewClient(&redis.Options{Addr: r.redis.address})
	sub, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client: client, ConsumerGroup: group, Consumer: "bench", OldestId: "0",
	}, watermill.NopLogger{})
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	return sub, func() {
		_ = sub.Close()
		_ = client.Close()
	}, nil
}

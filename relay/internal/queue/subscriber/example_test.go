package subscriber_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/embeddedredis"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

func ExampleSubscriber() {
	ctx := context.Background()
	server, err := embeddedredis.Memory(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Dialer: server.Dialer, Protocol: 2, MaxRetries: -1})
	defer func() { _ = client.Close() }()

	pub := newPublisher(client)
	sub, err := subscriber.New(subscriber.Config{
		Commands: client, Readers: client, Group: "sinks", Consumer: "node-0",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = sub.Close() }()

	m := message.NewMessage("65f0a1b2c3d4e5f601234567", []byte(`{"topic":"container.created"}`))
	m.Metadata.Set("topic", "container.created")
	if err := pub.Publish("billing", m); err != nil {
		fmt.Println(err)
		return
	}
	messages, err := sub.Subscribe(ctx, "billing")
	if err != nil {
		fmt.Println(err)
		return
	}
	got := <-messages
	got.Ack()
	fmt.Println(got.UUID, got.Metadata.Get("topic"))
	// Output: 65f0a1b2c3d4e5f601234567 container.created
}

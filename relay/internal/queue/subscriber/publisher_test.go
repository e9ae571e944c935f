package subscriber_test

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

// publisher is a Watermill publisher that writes the entries which a Subscriber reads.
type publisher struct {
	commands redis.UniversalClient
	closed   atomic.Bool
}

var (
	_ message.Publisher = (*publisher)(nil)

	errPublisherClosed = errors.New("the publisher is closed")
)

const publishChunk = 512 // entries in one pipeline

func newPublisher(commands redis.UniversalClient) *publisher { return &publisher{commands: commands} }

// Publish appends the messages in order.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if p.closed.Load() {
		return errPublisherClosed
	}
	args := make([]redis.XAddArgs, len(messages))
	for i, m := range messages {
		values, err := entryFields(m)
		if err != nil {
			return err
		}
		args[i] = redis.XAddArgs{Stream: topic, Values: values}
	}
	for len(args) > 0 {
		n := min(len(args), publishChunk)
		if err := p.appendEntries(messages[0], args[:n]); err != nil {
			return fmt.Errorf("append to %s: %w", topic, err)
		}
		args = args[n:]
	}
	return nil
}

func (p *publisher) appendEntries(first *message.Message, args []redis.XAddArgs) error {
	ctx := first.Context()
	pipe := p.commands.Pipeline()
	for i := range args {
		pipe.XAdd(ctx, &args[i])
	}
	_, err := pipe.Exec(ctx)
	return err
}

// entryFields encodes a message. The cursor is not a field, because it is the ID of the entry.
func entryFields(m *message.Message) ([]any, error) {
	if m.UUID == "" {
		return nil, errors.New("encode message: it has no UUID")
	}
	values := make([]any, 0, 4+2*len(m.Metadata))
	values = append(values, "id", m.UUID, "data", []byte(m.Payload))
	for k, v := range m.Metadata {
		switch k {
		case "cursor":
		case "id", "data":
			return nil, fmt.Errorf("encode message: metadata key %q is a field of the entry", k)
		default:
			values = append(values, k, v)
		}
	}
	return values, nil
}

// Close makes Publish fail.
func (p *publisher) Close() error {
	p.closed.Store(true)
	return nil
}

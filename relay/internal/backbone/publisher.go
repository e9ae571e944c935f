package backbone

import (
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

// PublisherConfig says where a [Publisher] writes.
type PublisherConfig struct {
	// Commands is not closed by the Publisher. Its MaxRetries must be -1: a repeated XADD is a second entry.
	Commands redis.UniversalClient
	// Stream names the stream of a message; nil means that the topic is the stream's name.
	Stream func(topic string, m *message.Message) string
}

// Publisher is a Watermill Publisher on Redis Streams. Its methods may be called concurrently.
type Publisher struct {
	cfg    PublisherConfig
	closed atomic.Bool
}

var _ message.Publisher = (*Publisher)(nil)

const publishChunk = 512 // entries in one pipeline

// NewPublisher returns a Publisher.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	if cfg.Commands == nil {
		return nil, fmt.Errorf("a publisher needs a client for commands")
	}
	if cfg.Stream == nil {
		cfg.Stream = func(topic string, _ *message.Message) string { return topic }
	}
	return &Publisher{cfg: cfg}, nil
}

// Publish appends the messages in order, with the context of the first. After an error some may have been appended:
// where Redis did not answer, nobody knows. It never repeats.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if p.closed.Load() {
		return ErrClosed
	}
	args := make([]redis.XAddArgs, len(messages))
	for i, m := range messages {
		values, err := entryFields(m)
		if err != nil {
			return err
		}
		args[i] = redis.XAddArgs{Stream: p.cfg.Stream(topic, m), Values: values}
	}
	for len(args) > 0 {
		n := min(len(args), publishChunk)
		if err := p.appendEntries(messages[0], args[:n]); err != nil {
			return fmt.Errorf("append to the queue of %s: %w", topic, err)
		}
		args = args[n:]
	}
	return nil
}

func (p *Publisher) appendEntries(first *message.Message, args []redis.XAddArgs) error {
	ctx := first.Context()
	if len(args) == 1 {
		return p.cfg.Commands.XAdd(ctx, &args[0]).Err()
	}
	pipe := p.cfg.Commands.Pipeline()
	for i := range args {
		pipe.XAdd(ctx, &args[i])
	}
	_, err := pipe.Exec(ctx)
	return err
}

// entryFields writes a message as a queue entry, which a Subscriber reads back. The cursor is the entry's own id.
func entryFields(m *message.Message) ([]any, error) {
	if m.UUID == "" {
		return nil, fmt.Errorf("a message without UUID cannot be published")
	}
	values := make([]any, 0, 4+2*len(m.Metadata))
	values = append(values, fieldID, m.UUID, fieldData, []byte(m.Payload))
	for k, v := range m.Metadata {
		switch k {
		case metadataCursor:
		case fieldID, fieldData:
			return nil, fmt.Errorf("the metadata key %q is a field of the entry itself", k)
		default:
			values = append(values, k, v)
		}
	}
	return values, nil
}

// Close refuses further messages. Nothing is buffered. It may be called twice.
func (p *Publisher) Close() error {
	p.closed.Store(true)
	return nil
}

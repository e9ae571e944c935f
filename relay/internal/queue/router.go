// Package queue stores the queue of each sink, a stream in Redis for each partition, and delivers from it. [Store]
// copies matched log entries into the queues and stores the positions of sinks. A [Router] runs Watermill for one
// sink: it turns the messages of a queue into deliveries.
//
// Matching belongs to package dispatch, attempts and retries belong to package pipeline. Reading the streams belongs
// to package subscriber.
package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

// The metadata keys of a queue's messages.
const (
	metadataTopic   = "topic"
	metadataHub     = "hub"
	metadataAccount = "account"
	metadataCursor  = "cursor"
)

const (
	routerRetryMin      = 100 * time.Millisecond
	routerRetryMax      = 5 * time.Second
	defaultCloseTimeout = 30 * time.Second
)

// Handler processes the deliveries of one sink. Handle may be called concurrently.
type Handler interface {
	// Name is the name of the sink, which is also the topic of its queue.
	Name() string
	// Handle returns nil to remove d from the queue. After an error, d is delivered again. stored reports that Redis contains d
	// elsewhere now, for example as a retry. Otherwise, d needs no further attempt.
	Handle(ctx context.Context, d relay.Delivery) (stored bool, err error)
	// WaitEnabled blocks until the sink accepts deliveries. The channel is closed when it stops to accept them.
	WaitEnabled(ctx context.Context) (<-chan struct{}, error)
}

// RouterOptions configure the router of one sink.
type RouterOptions struct {
	Handler Handler
	// Subscriber reads the queues, with the name of the sink as topic. The router never closes it.
	Subscriber message.Subscriber
	// CloseTimeout is the maximum time to wait for handlers when the router stops. The default is 30 s.
	CloseTimeout time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// Router delivers from the queue of one sink. It creates a new Watermill router each time the sink is enabled, because
// Watermill keeps the middlewares of handlers that were removed, and handlers whose subscription failed.
type Router struct {
	o RouterOptions
}

// NewRouter returns a router. Call Run to start it.
func NewRouter(o RouterOptions) (*Router, error) {
	if o.Handler == nil || o.Subscriber == nil {
		return nil, errors.New("create router: handler and subscriber are required")
	}
	if o.CloseTimeout <= 0 {
		o.CloseTimeout = defaultCloseTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Router{o: o}, nil
}

// Run passes deliveries to the handler while the sink is enabled. When ctx ends, it waits for the handlers and returns
// nil.
func (r *Router) Run(ctx context.Context) error {
	retry := backoff.Backoff{Min: routerRetryMin, Max: routerRetryMax}
	for ctx.Err() == nil {
		disabled, err := r.o.Handler.WaitEnabled(ctx)
		if err != nil {
			continue // ctx has ended
		}
		err = r.runOnce(ctx, disabled)
		if err == nil {
			retry.Reset()
			continue
		}
		if ctx.Err() != nil {
			break
		}
		r.o.Log.WarnContext(ctx, "reading the queue of a sink failed", "error", err)
		if !retry.Sleep(ctx) {
			break
		}
	}
	return nil
}

// runOnce runs one Watermill router until ctx ends or the sink is disabled.
func (r *Router) runOnce(ctx context.Context, disabled <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	name := r.o.Handler.Name()
	// Subscribe first, because a Watermill router leaks a goroutine if the subscription of its handler fails.
	messages, err := r.o.Subscriber.Subscribe(ctx, name)
	if err != nil {
		return fmt.Errorf("subscribe to the queue: %w", err)
	}
	levels := map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug}
	logger := watermill.NewSlogLoggerWithLevelMapping(r.o.Log, levels)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: r.o.CloseTimeout}, quietLogger{logger})
	if err != nil {
		return fmt.Errorf("create a Watermill router: %w", err)
	}
	// No middleware is needed: the router turns a panic into a nack, and package pipeline does the rest.
	router.AddConsumerHandler(name, name, fixedSubscriber{messages}, func(m *message.Message) error {
		return r.consumeMessage(m, disabled)
	})
	stopped := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-disabled:
			cancel()
		case <-stopped:
		}
	}()
	// The end of ctx ends the subscription, which ends the router. If the router were closed instead, messages that the
	// subscriber has already sent would have no receiver.
	err = router.Run(ctx)
	close(stopped)
	<-watched
	if err != nil {
		return fmt.Errorf("run a Watermill router: %w", err)
	}
	return nil
}

func (r *Router) consumeMessage(m *message.Message, disabled <-chan struct{}) error {
	stored, err := r.o.Handler.Handle(m.Context(), newDelivery(m))
	if err == nil {
		if stored {
			subscriber.MarkStored(m)
		}
		return nil
	}
	select {
	case <-disabled:
		// The message stays in the queue as intended. Watermill does not log canceled contexts.
		return errors.Join(context.Canceled, err)
	default:
		return err
	}
}

func newDelivery(m *message.Message) relay.Delivery {
	return relay.Delivery{ID: m.UUID, Attempt: 1, Notifications: []relay.Notification{{
		ID: m.UUID, Topic: m.Metadata[metadataTopic],
		Hub: m.Metadata[metadataHub], Account: m.Metadata[metadataAccount],
		Cursor: m.Metadata[metadataCursor], Data: []byte(m.Payload),
	}}}
}

// OrderingKey adapts an ordering key of notifications to the messages of a subscriber.
func OrderingKey(key func(relay.Notification) string) func(topic string, m *message.Message) string {
	return func(_ string, m *message.Message) string { return key(newDelivery(m).Notifications[0]) }
}

// fixedSubscriber passes an existing subscription to a Watermill router. Close does nothing, because all sinks share
// the real subscriber.
type fixedSubscriber struct{ messages <-chan *message.Message }

var _ message.Subscriber = fixedSubscriber{}

func (s fixedSubscriber) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return s.messages, nil
}

func (fixedSubscriber) Close() error { return nil }

// quietLogger drops the messages that a Watermill router logs for each message.
type quietLogger struct{ watermill.LoggerAdapter }

func (quietLogger) Trace(string, watermill.LogFields) {}

// Error logs the end of a subscription at debug level. When the router stops, the subscription may end slightly
// before the context does. Otherwise, Run subscribes again.
func (q quietLogger) Error(msg string, err error, fields watermill.LogFields) {
	if err != nil && err.Error() == "all router handlers stopped" {
		q.Debug(msg, fields)
		return
	}
	q.LoggerAdapter.Error(msg, err, fields)
}

func (q quietLogger) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return quietLogger{q.LoggerAdapter.With(fields)}
}

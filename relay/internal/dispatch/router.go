package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/hubrelay/hubrelay/relay"
)

// The metadata keys of a queue's messages.
const (
	metadataTopic   = "topic"
	metadataHub     = "hub"
	metadataAccount = "account"
	metadataCursor  = "cursor"
)

// Handler takes the deliveries of one sink.
type Handler interface {
	// Name is the sink's name, which is the topic of its queue too.
	Name() string
	// Handle returns nil when nothing is left to do for d in the queue. After an error d comes again.
	Handle(ctx context.Context, d relay.Delivery) error
	// WaitEnabled blocks until the sink takes deliveries. The channel is closed when it takes no more.
	WaitEnabled(ctx context.Context) (<-chan struct{}, error)
}

// RouterOptions describe the router of one sink.
type RouterOptions struct {
	Handler Handler
	// Subscriber reads the queues; the handler's name is the topic. The router never closes it.
	Subscriber message.Subscriber
	// CloseTimeout bounds how long the router waits for running handlers when it stops; 30 s where zero.
	CloseTimeout time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// Router is a sink's Watermill router with one handler. Every time the sink is enabled it is a new one: Watermill keeps
// the middlewares of handlers that were removed, and a handler whose subscription failed.
type Router struct {
	o RouterOptions
}

// NewRouter returns a router that does nothing before Run.
func NewRouter(o RouterOptions) (*Router, error) {
	if o.Handler == nil || o.Subscriber == nil {
		return nil, errors.New("a router needs a handler and a subscriber")
	}
	if o.CloseTimeout <= 0 {
		o.CloseTimeout = 30 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Router{o: o}, nil
}

// Run hands over deliveries while the sink is enabled, until ctx ends and the handlers have returned. It returns nil.
func (r *Router) Run(ctx context.Context) error {
	wait := retryMin
	for ctx.Err() == nil {
		disabled, err := r.o.Handler.WaitEnabled(ctx)
		if err != nil {
			continue // ctx has ended
		}
		err = r.runOnce(ctx, disabled)
		if err == nil {
			wait = retryMin
			continue
		}
		if ctx.Err() != nil {
			break
		}
		r.o.Log.Warn("a sink's queue cannot be read, trying again", "error", err)
		if !relay.Sleep(ctx, wait) {
			break
		}
		wait = min(2*wait, retryMax)
	}
	return nil
}

// runOnce runs one Watermill router until ctx ends or the sink is disabled.
func (r *Router) runOnce(ctx context.Context, disabled <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	name := r.o.Handler.Name()
	// Subscribed first: a router whose handler cannot subscribe leaves a goroutine behind.
	messages, err := r.o.Subscriber.Subscribe(ctx, name)
	if err != nil {
		return fmt.Errorf("subscribe to a sink's queue: %w", err)
	}
	logger := quietLogger{watermill.NewSlogLoggerWithLevelMapping(r.o.Log, map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug})}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: r.o.CloseTimeout}, logger)
	if err != nil {
		return fmt.Errorf("make a router: %w", err)
	}
	// No middleware: the router itself turns a panic into a nack, and all else is deliver's business.
	router.AddConsumerHandler(name, name, fixedSubscriber{messages}, func(m *message.Message) error {
		return r.handle(m, disabled)
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
	// The end of ctx ends the subscription, and that the router. Closing the router instead would leave messages that
	// were handed over already without anybody to take them.
	err = router.Run(ctx)
	close(stopped)
	<-watched
	if err != nil {
		return fmt.Errorf("run a router: %w", err)
	}
	return nil
}

func (r *Router) handle(m *message.Message, disabled <-chan struct{}) error {
	err := r.o.Handler.Handle(m.Context(), newDelivery(m))
	if err == nil {
		return nil
	}
	select {
	case <-disabled:
		// The message stays in the queue, which is as it should be and no error to log.
		return errors.Join(context.Canceled, err)
	default:
		return err
	}
}

func newDelivery(m *message.Message) relay.Delivery {
	return relay.Delivery{ID: m.UUID, Attempt: 1, Notifications: []relay.Notification{{
		ID: m.UUID, Topic: m.Metadata[metadataTopic], Hub: m.Metadata[metadataHub], Account: m.Metadata[metadataAccount],
		Cursor: m.Metadata[metadataCursor], Data: []byte(m.Payload),
	}}}
}

// OrderingKey is the ordering key of a queue's messages for a Subscriber, by what of says of their notification.
func OrderingKey(of func(relay.Notification) string) func(topic string, m *message.Message) string {
	return func(_ string, m *message.Message) string { return of(newDelivery(m).Notifications[0]) }
}

// fixedSubscriber is a subscription that a router takes over. Closing it leaves alone the subscriber, which all sinks share.
type fixedSubscriber struct{ messages <-chan *message.Message }

func (s fixedSubscriber) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return s.messages, nil
}

func (fixedSubscriber) Close() error { return nil }

// quietLogger leaves out the lines that a router writes about each message.
type quietLogger struct{ watermill.LoggerAdapter }

func (quietLogger) Trace(string, watermill.LogFields) {}

// Error takes it for no error that the subscription has ended: at a stop that may be a moment before the router's context
// ends, and else the Router subscribes anew.
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

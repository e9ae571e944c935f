package daemon

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

// consumerGroup reads the queues of all sinks.
const consumerGroup = "hubrelay"

// deliveryService takes deliveries out of the queues: the pipeline of each sink, its router, and the retries.
type deliveryService struct {
	app        *App
	stores     *stores
	store      *delivery.Store
	subscriber *subscriber.Subscriber
	retries    *delivery.RetryScheduler

	desired chan *config.Config // holds the latest configuration that is not taken over
	applied *config.Config      // that was taken over last; it belongs to follow

	// What follows belongs to run, and the change of the roster.
	ctx   context.Context // of what runs
	group *errgroup.Group
}

// startDelivery starts what takes deliveries out of the queues.
func (a *App) startDelivery(ctx context.Context, p *components, s *stores, store *delivery.Store, node *lease.Node) error {
	grace := a.cfg.Server.ShutdownGrace
	d := &deliveryService{app: a, stores: s, store: store, desired: make(chan *config.Config, 1), applied: a.cfg}
	queues := d.subscriberConfig(node.Name)
	queues.MaxInFlight = func(sink string) int {
		if s := a.sinks.get(sink); s != nil && s.cfg.Digest.Wait == 0 {
			return s.handlerConcurrency()
		}
		return 1 // gathering is quick, and a digest holds the first that came
	}
	// A kill repeats what is in flight anyway, so as much again may wait to be stored.
	queues.MaxUnflushedAcks = func(sink string) int {
		if s := a.sinks.get(sink); s != nil {
			return s.handlerConcurrency()
		}
		return 1
	}
	var err error
	if d.subscriber, err = subscriber.New(queues); err != nil {
		return err
	}
	p.startComponent(ctx, "queues", func(ctx context.Context) error {
		<-ctx.Done()
		return d.subscriber.Close()
	})
	d.retries = delivery.NewRetryScheduler(delivery.RetrySchedulerOptions{Store: store, Grace: grace, Log: a.log.With("room", "deliver")})
	a.notices = delivery.NewNotices(delivery.NoticesOptions{
		Store: store, NewID: a.newDecoder().NewID, Dropped: a.metrics.NoticeDropped, Log: a.log.With("room", "deliver"),
	})
	for _, s := range a.sinks.all() {
		if err := d.newSinkPipeline(s); err != nil {
			return err
		}
	}
	a.notices.Listen(noticeListeners(a.sinks.all()))
	a.delivery = d
	p.startComponent(ctx, "deliveries", d.run)
	return nil
}

// subscriberConfig is what every Subscriber to the queues has in common; how many lanes there are is still to say.
func (d *deliveryService) subscriberConfig(consumer string) subscriber.Config {
	keys, conn := d.stores.keys, d.stores.conn
	return subscriber.Config{
		Commands: conn.Commands(), Readers: conn.Readers(), Group: consumerGroup, Consumer: consumer,
		Streams: func(sink string) []string { return queue.Keys(keys, sink) }, Slot: keys.Slot,
		HandlerGrace: d.app.cfg.Server.ShutdownGrace, Log: d.app.log.With("room", "queues"),
	}
}

// noticeListeners are sinks as those that may hear of each other.
func noticeListeners(sinks []*openSink) []delivery.NoticeListener {
	var list []delivery.NoticeListener
	for _, s := range sinks {
		list = append(list, delivery.NoticeListener{Sink: s.name, Filter: s.filter, Backlog: s.cfg.Backlog})
	}
	return list
}

// run delivers until ctx ends, then ends all sinks side by side.
func (d *deliveryService) run(ctx context.Context) error {
	d.group, d.ctx = errgroup.WithContext(ctx)
	for _, s := range d.app.sinks.all() {
		d.startSink(s)
	}
	d.group.Go(task{"retries", d.retries.Run}.untilDone(d.ctx))
	d.group.Go(task{"changes of sinks", d.applyChanges}.untilDone(d.ctx))
	err := d.group.Wait()
	d.retries.Flush(ctx)
	return err
}

// newSinkPipeline makes the pipeline of a sink, for which nothing runs yet.
func (d *deliveryService) newSinkPipeline(s *openSink) error {
	pipeline, err := d.app.newPipeline(s, d.store)
	if err != nil {
		return err
	}
	s.pipeline = pipeline
	d.app.metrics.SetInFlightFunc(s.name, pipeline.InFlight)
	d.app.metrics.SetUnhealthyFunc(s.name, func() bool { return sinkHealth(s.sink) != nil })
	d.retries.Add(pipeline)
	return nil
}

// startSink begins to deliver to a sink that is prepared and in the roster.
func (d *deliveryService) startSink(s *openSink) {
	ctx, stop := context.WithCancel(d.ctx)
	s.stop, s.done = stop, make(chan struct{})
	work := task{"sink " + s.name, d.runUnordered(s)}
	if s.pipeline.Ordered() {
		work.run = d.runOrdered(s)
	}
	if starter, ok := s.sink.(relay.Starter); ok {
		starter.Start()
	}
	d.group.Go(func() error {
		defer close(s.done)
		return work.untilDone(ctx)()
	})
}

// runUnordered works the queue of a sink that keeps no order, as every node does.
func (d *deliveryService) runUnordered(s *openSink) func(context.Context) error {
	return func(ctx context.Context) error {
		router, err := d.newRouter(s, d.subscriber)
		if err != nil {
			return err
		}
		return router.Run(ctx)
	}
}

func (d *deliveryService) newRouter(s *openSink, from *subscriber.Subscriber) (*queue.Router, error) {
	return queue.NewRouter(queue.RouterOptions{
		Handler: s.pipeline, Subscriber: from, CloseTimeout: d.app.cfg.Server.ShutdownGrace, Log: d.app.log.With("sink", s.name),
	})
}

// stopSink ends the deliveries to a sink that was launched and closes it. What it has not delivered stays in Redis. Attempts have
// the grace to end; a sink that does not let go of one then is closed once it does.
func (d *deliveryService) stopSink(s *openSink) error {
	s.stop()
	s.pipeline.Stop()
	cut := time.AfterFunc(d.app.cfg.Server.ShutdownGrace, func() { d.retries.CancelRetries(s.pipeline) })
	defer cut.Stop()
	<-s.done
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), d.app.cfg.Server.ShutdownGrace)
	defer cancel()
	d.retries.Remove(ctx, s.pipeline)
	closing, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), time.Second)
	defer cancel()
	err := s.close(closing)
	if closing.Err() != nil {
		go func() { _ = s.close(context.Background()) }() // that it was late was told already
	}
	return err
}

package daemon

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/notice"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/pipeline"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/retry"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

// consumerGroup is the consumer group of all sink queues.
const consumerGroup = "hubrelay"

// deliveryService delivers what is in the queues. It owns the pipeline and the router of each sink, the retry scheduler
// and the reporter of statistics.
type deliveryService struct {
	app        *Daemon
	stores     *stores
	store      *store.Store
	subscriber *subscriber.Subscriber
	scheduler  *retry.Scheduler
	reporter   *pipeline.Reporter

	desired chan *config.Config // holds the latest configuration that is not applied yet
	applied *config.Config      // last applied configuration; used by applyChanges only

	// The following fields belong to run and applyChanges.
	ctx   context.Context // of the running tasks
	group *errgroup.Group
}

// startDelivery creates the delivery service and starts it.
func (a *Daemon) startDelivery(
	ctx context.Context, p *components, s *stores, store *store.Store, node *lease.Node,
) error {
	grace := a.cfg.Server.ShutdownGrace
	d := &deliveryService{app: a, stores: s, store: store, desired: make(chan *config.Config, 1), applied: a.cfg}
	queues := d.subscriberConfig(node.Name)
	queues.MaxInFlight = func(sink string) int {
		if s := a.sinks.get(sink); s != nil && s.cfg.Digest.Wait == 0 {
			return s.handlerConcurrency()
		}
		return 1 // Adding to a digest is fast, and the order of arrival decides which notifications it lists.
	}
	// Deliveries in flight are repeated after a crash anyway, so the same number of acks may be unflushed.
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
	log := a.log.With("component", "delivery")
	d.scheduler = retry.NewScheduler(retry.Options{
		Retries: &store.Retries, States: &store.States, Grace: grace, Log: log,
	})
	d.reporter = pipeline.NewReporter(&store.Stats, log)
	a.notices = notice.NewPublisher(notice.Options{
		Retries: &store.Retries, States: &store.States, NewID: a.newDecoder().NewID,
		Dropped: func(sink string) { a.metrics.Dropped(sink, 1) }, Log: log,
	})
	for _, s := range a.sinks.all() {
		if err := d.newSinkPipeline(s); err != nil {
			return err
		}
	}
	a.notices.SetListeners(noticeListeners(a.sinks.all()))
	a.delivery = d
	p.startComponent(ctx, "deliveries", d.run)
	return nil
}

// subscriberConfig returns the common options of all subscribers. The caller sets MaxInFlight.
func (d *deliveryService) subscriberConfig(consumer string) subscriber.Config {
	keys, conn := d.stores.keys, d.stores.conn
	return subscriber.Config{
		Commands: conn.Commands(), Readers: conn.Readers(), Group: consumerGroup, Consumer: consumer,
		Streams: func(sink string) []string { return queue.Keys(keys, sink) }, Slot: keys.Slot,
		HandlerGrace: d.app.cfg.Server.ShutdownGrace, Log: d.app.log.With("component", "queues"),
	}
}

// noticeListeners returns the sinks as possible receivers of notices.
func noticeListeners(sinks []*openSink) []notice.Listener {
	var list []notice.Listener
	for _, s := range sinks {
		list = append(list, notice.Listener{
			Sink: s.name, Filter: s.filter, Ordering: s.ordering(), Backlog: s.cfg.Backlog,
		})
	}
	return list
}

// run delivers until ctx ends, then stops all sinks concurrently.
func (d *deliveryService) run(ctx context.Context) error {
	d.group, d.ctx = errgroup.WithContext(ctx)
	for _, s := range d.app.sinks.all() {
		d.startSink(s)
	}
	d.group.Go(task{"retries", d.scheduler.Run}.untilDone(d.ctx))
	d.group.Go(task{"statistics of sinks", d.reporter.Run}.untilDone(d.ctx))
	d.group.Go(task{"changes of sinks", d.applyChanges}.untilDone(d.ctx))
	err := d.group.Wait()
	d.reporter.Flush(ctx)
	return err
}

// newSinkPipeline creates the pipeline of a sink and starts nothing.
func (d *deliveryService) newSinkPipeline(s *openSink) error {
	retries := d.scheduler.Register(s.name)
	pipeline, err := d.app.newPipeline(s, d.store, retries.Wake)
	if err != nil {
		return err
	}
	s.pipeline, s.retries = pipeline, retries
	d.app.metrics.SetInFlightFunc(s.name, pipeline.InFlight)
	d.app.metrics.SetStateFunc(s.name, func() adminapi.SinkState { return s.stateOnNode(pipeline.State()).state })
	d.reporter.Add(pipeline)
	retries.Attach(pipeline)
	return nil
}

// startSink starts deliveries to a sink that has a pipeline and is in the registry.
func (d *deliveryService) startSink(s *openSink) {
	ctx, stop := context.WithCancel(d.ctx)
	s.stop, s.done = stop, make(chan struct{})
	work := task{"sink " + s.name, d.runUnordered(s)}
	if s.pipeline.Ordered() {
		work.run = d.runOrdered(s)
	}
	if service, ok := s.sink.(relay.Service); ok {
		service.Start()
	}
	d.group.Go(func() error {
		defer close(s.done)
		return work.untilDone(ctx)()
	})
}

// runUnordered consumes the queue of an unordered sink. All nodes do this concurrently.
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
		Handler: s.pipeline, Subscriber: from, CloseTimeout: d.app.cfg.Server.ShutdownGrace, Log: d.app.log.With("sink",
			s.name),
	})
}

// stopSink stops deliveries to a sink and closes it. Undelivered notifications stay in Redis. Attempts may finish
// within the grace period. A sink with an attempt that never returns is closed when that attempt returns.
func (d *deliveryService) stopSink(s *openSink) error {
	s.stop()
	s.pipeline.Stop()
	cancelRetries := time.AfterFunc(d.app.cfg.Server.ShutdownGrace, s.retries.Cancel)
	defer cancelRetries.Stop()
	<-s.done
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), d.app.cfg.Server.ShutdownGrace)
	defer cancel()
	s.retries.Detach(ctx)
	d.reporter.Remove(ctx, s.pipeline)
	closeCtx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), time.Second)
	defer cancel()
	err := s.close(closeCtx)
	if closeCtx.Err() != nil {
		go func() { _ = s.close(context.Background()) }() // the timeout was already reported
	}
	return err
}

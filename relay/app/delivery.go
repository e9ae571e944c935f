package app

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/config"
	"github.com/hubrelay/hubrelay/relay/deliver"
	"github.com/hubrelay/hubrelay/relay/dispatch"
)

// consumerGroup reads the queues of all sinks.
const consumerGroup = "hubrelay"

// delivery takes deliveries out of the queues: the pipeline of each sink, its router, and the retries.
type delivery struct {
	app        *App
	backbone   *backbone.Backbone
	store      *deliver.Store
	subscriber *backbone.Subscriber
	retries    *deliver.Retries

	wanted  chan *config.Config // holds the latest configuration that is not taken over
	adopted *config.Config      // that was taken over last; it belongs to follow

	// What follows belongs to run, and the change of the roster.
	ctx   context.Context // of what runs
	group *errgroup.Group
}

// startDelivery starts what takes deliveries out of the queues.
func (a *App) startDelivery(ctx context.Context, p *parts, b *backbone.Backbone, store *deliver.Store, node *backbone.Node) error {
	grace := a.cfg.Server.ShutdownGrace
	d := &delivery{app: a, backbone: b, store: store, wanted: make(chan *config.Config, 1), adopted: a.cfg}
	queues := d.queues(node.Name)
	queues.Lanes = func(sink string) int {
		if s := a.sinks.named(sink); s != nil && s.cfg.Digest.Wait == 0 {
			return s.lanes()
		}
		return 1 // gathering is quick, and a digest holds the first that came
	}
	// A kill repeats what is in flight anyway, so as much again may wait to be stored.
	queues.Unstored = func(sink string) int {
		if s := a.sinks.named(sink); s != nil {
			return s.lanes()
		}
		return 1
	}
	var err error
	if d.subscriber, err = backbone.NewSubscriber(queues); err != nil {
		return err
	}
	p.start(ctx, "queues", func(ctx context.Context) error {
		<-ctx.Done()
		return d.subscriber.Close()
	})
	d.retries = deliver.NewRetries(deliver.RetriesOptions{Store: store, Grace: grace, Log: a.log.With("room", "deliver")})
	a.notices = deliver.NewNotices(deliver.NoticesOptions{
		Store: store, NewID: a.decoder().NewID, Dropped: a.metrics.NoticeDropped, Log: a.log.With("room", "deliver"),
	})
	for _, s := range a.sinks.all() {
		if err := d.prepare(s); err != nil {
			return err
		}
	}
	a.notices.Listen(listeners(a.sinks.all()))
	a.delivery = d
	p.start(ctx, "deliveries", d.run)
	return nil
}

// queues is what every Subscriber to the queues has in common; how many lanes there are is still to say.
func (d *delivery) queues(consumer string) backbone.SubscriberConfig {
	keys := d.backbone.Keys()
	return backbone.SubscriberConfig{
		Commands: d.backbone.Commands(), Readers: d.backbone.Readers(), Group: consumerGroup, Consumer: consumer,
		Streams: keys.Queues, Slot: keys.Slot,
		Grace: d.app.cfg.Server.ShutdownGrace, Log: d.app.log.With("room", "queues"),
	}
}

// listeners are sinks as those that may hear of each other.
func listeners(sinks []*sink) []deliver.Listener {
	var list []deliver.Listener
	for _, s := range sinks {
		list = append(list, deliver.Listener{Sink: s.name, Filter: s.filter, Backlog: s.cfg.Backlog})
	}
	return list
}

// run delivers until ctx ends, then ends all sinks side by side.
func (d *delivery) run(ctx context.Context) error {
	d.group, d.ctx = errgroup.WithContext(ctx)
	for _, s := range d.app.sinks.all() {
		d.launch(s)
	}
	d.group.Go(run{"retries", d.retries.Run}.guard(d.ctx))
	d.group.Go(run{"changes of sinks", d.follow}.guard(d.ctx))
	err := d.group.Wait()
	d.retries.Finish(ctx)
	return err
}

// prepare makes the pipeline of a sink, for which nothing runs yet.
func (d *delivery) prepare(s *sink) error {
	pipeline, err := d.app.newPipeline(s, d.store)
	if err != nil {
		return err
	}
	s.pipeline = pipeline
	d.app.metrics.InFlight(s.name, pipeline.InFlight)
	d.app.metrics.Ailing(s.name, func() bool { return ailment(s.sink) != nil })
	d.retries.Add(pipeline)
	return nil
}

// launch begins to deliver to a sink that is prepared and in the roster.
func (d *delivery) launch(s *sink) {
	ctx, stop := context.WithCancel(d.ctx)
	s.stop, s.ended = stop, make(chan struct{})
	work := run{"sink " + s.name, d.unordered(s)}
	if s.pipeline.Ordered() {
		work.run = d.inOrder(s)
	}
	if starter, ok := s.sink.(relay.Starter); ok {
		starter.Start()
	}
	d.group.Go(func() error {
		defer close(s.ended)
		return work.guard(ctx)()
	})
}

// unordered works the queue of a sink that keeps no order, as every node does.
func (d *delivery) unordered(s *sink) func(context.Context) error {
	return func(ctx context.Context) error {
		router, err := d.router(s, d.subscriber)
		if err != nil {
			return err
		}
		return router.Run(ctx)
	}
}

func (d *delivery) router(s *sink, from *backbone.Subscriber) (*dispatch.Router, error) {
	return dispatch.NewRouter(dispatch.RouterOptions{
		Handler: s.pipeline, Subscriber: from, CloseTimeout: d.app.cfg.Server.ShutdownGrace, Log: d.app.log.With("sink", s.name),
	})
}

// end ends the deliveries to a sink that was launched and closes it. What it has not delivered stays in Redis. Attempts have
// the grace to end; a sink that does not let go of one then is closed once it does.
func (d *delivery) end(s *sink) error {
	s.stop()
	s.pipeline.Stop()
	cut := time.AfterFunc(d.app.cfg.Server.ShutdownGrace, func() { d.retries.Cut(s.pipeline) })
	defer cut.Stop()
	<-s.ended
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

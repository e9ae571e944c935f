// Package delivery delivers to all sinks of a node. [Service] fills and consumes the queues of the sinks, runs their
// pipelines and retries, applies changes of the configuration, and implements the operations on sinks of the admin API.
//
// How one delivery is made belongs to package pipeline, and the content of Redis to packages queue and store.
package delivery

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/notice"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/pipeline"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/retry"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/dispatch"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/lifecycle"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

// relayActor is the actor of changes that the relay makes on its own.
const relayActor = "relay"

// ConsumerGroup is the consumer group of all queues of sinks.
const ConsumerGroup = "hubrelay"

// Memory is the memory of Redis. See [storage.Monitor].
type Memory interface {
	dispatch.Memory
	replay.Memory
	// DeadLetterLimit returns the memory that the dead letters of all sinks may keep together in bytes, or 0 while Redis has
	// enough room.
	DeadLetterLimit() int64
}

// Options configure a [Service]. All fields are required unless their comments say otherwise.
type Options struct {
	// Sinks are the sinks at the start. The service closes them.
	Sinks *Sinks

	Conn       *redisconn.Conn
	Log        *eventlog.Log
	Queues     *queue.Store
	Deliveries *store.Store
	Leases     *lease.Manager
	Nodes      Nodes
	// Node is the name of this node.
	Node string

	// Retention returns the retention of one partition of the log.
	Retention func() eventlog.Retention
	// Memory limits the memory of queues and dead letters.
	Memory  Memory
	Notices *notice.Publisher
	// History records attempts and filters. It may be nil.
	History *history.Recorder
	// HistoryStore finds them.
	HistoryStore *history.Store
	// Receivers returns the names of the keys of the connected clients that received a notification. It may be nil.
	Receivers func(n relay.Notification, storedAt time.Time) []string
	Decoder   *ingest.Decoder
	Cursors   *streamid.Cursors
	// OnDisabled is called when the relay disables a sink.
	OnDisabled func(sink, reason string)
	// Grace is the time for running attempts when a sink is stopped.
	Grace  time.Duration
	Logger *slog.Logger
}

// Nodes knows the state of sinks on other nodes.
type Nodes interface {
	// WorksElsewhere reports whether a sink works on another node, as of a few seconds ago.
	WorksElsewhere(ctx context.Context, sink string) (bool, error)
	// OthersWithSink returns the names of other nodes that have a sink, or may have it.
	OthersWithSink(ctx context.Context, sink string) ([]string, error)
}

// Service delivers to the sinks of this node.
//
// [Service.Start] is called once, then [Service.AddPartition] for each partition. A component that [Service.StartComponent]
// has started calls [Service.Apply], so it ends with the sinks. It calls [Service.Wait] before it ends. All other methods
// may be called concurrently. Those for a named sink return 404.sink if it is neither configured nor known in Redis.
type Service struct {
	opts        Options
	sinks       *Sinks
	handovers   handovers
	nodeStates  nodeStates
	metrics     *metrics.Metrics
	keys        keyspace.Space
	log         *slog.Logger
	subscriber  *subscriber.Subscriber
	scheduler   *retry.Scheduler
	reporter    *pipeline.Reporter
	matcher     *dispatch.Matcher // of the sinks at the start
	dispatchers []*dispatch.Dispatcher
	erasures    erasures
	group       *lifecycle.Group // the consumers of the sinks, and the retries and statistics of all of them
}

// New creates the service with the pipelines of all sinks, and starts nothing. It is called once for the same [Sinks].
func New(o Options) (*Service, error) {
	log := o.Logger.With("component", "delivery")
	s := &Service{
		opts: o, sinks: o.Sinks, handovers: handovers{current: make(map[string]*handover), changed: make(chan struct{}, 1)},
		metrics: o.Sinks.opts.Metrics, keys: o.Conn.Keys(), log: o.Logger,
		erasures: erasures{store: &o.Deliveries.Erasures},
		reporter: pipeline.NewReporter(&o.Deliveries.Stats, log),
		group:    lifecycle.NewGroup(o.Logger),
		matcher:  newMatcher(o.Sinks.list()),
	}
	s.scheduler = retry.NewScheduler(retry.Options{
		Retries: &o.Deliveries.Retries, States: &o.Deliveries.States, OnChange: s.erasures.loadErasures, Grace: o.Grace, Log: log,
	})
	o.Sinks.shared.connect(o.Deliveries, o.Nodes)
	queues := s.subscriberConfig(o.Node)
	queues.MaxInFlight = func(name string) int {
		if sink := s.sinks.get(name); sink != nil && sink.cfg.Digest.Wait == 0 {
			return sink.handlerConcurrency()
		}
		return 1 // Adding to a digest is fast, and the order of arrival decides which notifications it lists.
	}
	// Deliveries in flight are repeated after a crash anyway, so the same number of acks may be unflushed.
	queues.MaxUnflushedAcks = func(name string) int {
		if sink := s.sinks.get(name); sink != nil {
			return sink.handlerConcurrency()
		}
		return 1
	}
	var err error
	if s.subscriber, err = subscriber.New(queues); err != nil {
		return nil, err
	}
	for _, sink := range s.sinks.list() {
		if err := s.newPipeline(sink); err != nil {
			return nil, errors.Join(err, s.subscriber.Close())
		}
	}
	s.opts.Notices.SetListeners(noticeListeners(s.sinks.list()))
	return s, nil
}

// subscriberConfig returns the common options of all subscribers. The caller sets MaxInFlight.
func (s *Service) subscriberConfig(consumer string) subscriber.Config {
	return subscriber.Config{
		Commands: s.opts.Conn.Commands(), Readers: s.opts.Conn.Readers(), Group: ConsumerGroup, Consumer: consumer,
		Streams: func(sink string) []string { return queue.Keys(s.keys, sink) }, Slot: s.keys.Slot,
		HandlerGrace: s.opts.Grace, Log: s.log.With("component", "queues"),
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

// Start starts deliveries to all sinks as components of a group. They stop concurrently, and the sinks stay open; see
// [Sinks.Close].
func (s *Service) Start(ctx context.Context, group *lifecycle.Group) {
	// It closes after the deliveries, or when they do not stop in time.
	group.Start(ctx, "queues", func(ctx context.Context) error {
		<-ctx.Done()
		return s.subscriber.Close()
	})
	for _, sink := range s.sinks.list() {
		s.startSink(ctx, sink)
	}
	s.StartComponent(ctx, "retries", s.scheduler.Run)
	s.StartComponent(ctx, "statistics of sinks", s.reporter.Run)
	s.StartComponent(ctx, "metrics of sinks", s.updateMetrics)
	s.StartComponent(ctx, "limit of dead letters", s.limitDeadLetters)
	group.Start(ctx, "deliveries", func(ctx context.Context) error {
		err := s.group.Run(ctx)
		s.reporter.Flush(ctx)
		return err
	})
}

// StartComponent starts a component that stops together with the sinks.
func (s *Service) StartComponent(ctx context.Context, name string, run func(context.Context) error) {
	s.group.Start(ctx, name, run)
}

// minDigestLimit is the minimum of digestLimit, about one notification of the maximum size.
const minDigestLimit = 256 << 10

// digestLimit returns the part of a sink in the memory for open digests, in bytes, or 0 for no limit. All digests have as much memory
// as all queues.
func (s *Service) digestLimit() int64 {
	total, _ := s.opts.Memory.QueueLimit()
	if total == 0 {
		return 0
	}
	count := int64(0)
	for _, sink := range s.sinks.list() {
		if cfg := &sink.cfg; cfg.BacklogBytes == 0 && (cfg.Digest.Wait > 0 || sink.kind.DigestOverRate) {
			count++
		}
	}
	return max(total/max(count, 1), minDigestLimit)
}

// newPipeline creates the pipeline of a sink and starts nothing.
func (s *Service) newPipeline(sink *openSink) error {
	retries := s.scheduler.Register(sink.name)
	fingerprint, err := sink.fingerprint()
	if err != nil {
		return err
	}
	cfg := sink.cfg
	p, err := pipeline.New(pipeline.Options{
		Name: sink.name, Sink: sink.impl, Store: s.opts.Deliveries, Wake: retries.Wake, Fingerprint: fingerprint,
		TakeExtraRequests: func() int { return int(sink.extraRequests.Swap(0)) },
		Schedule: pipeline.Schedule{
			Delays: cfg.Retry.Schedule, MaxAge: cfg.Retry.MaxAge, MaxAttempts: cfg.Retry.MaxAttempts,
		},
		DisableAfter: cfg.DisableAfter, AccountShare: cfg.AccountShare,
		Backlog: cfg.Backlog, BacklogBytes: int64(cfg.BacklogBytes), DigestBytes: s.digestLimit,
		Rate: cfg.Rate, Burst: cfg.Burst,
		Digest:             pipeline.Digest{Wait: cfg.Digest.Wait, Max: cfg.Digest.Max, By: cfg.Digest.By},
		Batch:              sink.batchOptions(),
		BatchesUnsupported: !sink.kind.Batches, DigestOverRate: sink.kind.DigestOverRate,
		Timeout: cfg.Timeout, Concurrency: cfg.Concurrency, Ordering: sink.ordering(),
		Log: s.log.With("sink", sink.name), Observer: s.metrics, Notices: s.opts.Notices, History: s.opts.History,
		IsErased:         s.erasures.isErased,
		HasOtherAccounts: s.opts.Queues.NewAccountSearch(sink.name).HasOthers,
		OnDisabled: func(reason string) {
			s.opts.OnDisabled(sink.name, reason)
			s.opts.History.RecordSinkChange(history.SinkChange{
				Sink: sink.name, State: string(adminapi.SinkDisabled), Actor: relayActor, Reason: reason,
			})
		},
	})
	if err != nil {
		return err
	}
	sink.pipeline, sink.retries = p, retries
	s.metrics.SetInFlightFunc(sink.name, p.InFlight)
	s.metrics.SetStateFunc(sink.name, func() adminapi.SinkState { return sink.stateOnNode(p.State()).state })
	s.reporter.Add(p)
	retries.Attach(p)
	return nil
}

// startSink starts deliveries to a sink that has a pipeline and is one of the current sinks.
func (s *Service) startSink(ctx context.Context, sink *openSink) {
	run := s.consumeQueue
	if sink.pipeline.Ordered() {
		run = s.consumeOrdered
	}
	if service, ok := sink.impl.(relay.Service); ok {
		service.Start()
	}
	sink.consumer = s.group.Start(ctx, "sink "+sink.name, func(ctx context.Context) error { return run(ctx, sink) })
}

// consumeQueue consumes the queue of an unordered sink until ctx ends. All nodes do this concurrently.
func (s *Service) consumeQueue(ctx context.Context, sink *openSink) error {
	router, err := s.newRouter(sink, s.subscriber)
	if err != nil {
		return err
	}
	return router.Run(ctx)
}

func (s *Service) newRouter(sink *openSink, from *subscriber.Subscriber) (*queue.Router, error) {
	return queue.NewRouter(queue.RouterOptions{
		Handler: sink.pipeline, Subscriber: from, CloseTimeout: s.opts.Grace, Log: s.log.With("sink", sink.name),
	})
}

// stopSink stops deliveries to a sink and closes it. Undelivered notifications stay in Redis. Attempts may finish
// within the grace period. A sink with an attempt that never returns is closed when that attempt returns.
func (s *Service) stopSink(ctx context.Context, sink *openSink) error {
	ctx = context.WithoutCancel(ctx)
	sink.consumer.Cancel()
	sink.pipeline.Stop()
	cancelRetries := time.AfterFunc(s.opts.Grace, sink.retries.Cancel)
	defer cancelRetries.Stop()
	_ = sink.consumer.Stop(ctx) // fails only if ctx ends
	detach, cancel := context.WithTimeout(ctx, s.opts.Grace)
	defer cancel()
	sink.retries.Detach(detach)
	s.reporter.Remove(detach, sink.pipeline)
	closing, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := sink.close(closing)
	if closing.Err() != nil {
		go func() { _ = sink.close(ctx) }() // the timeout was already reported
	}
	return err
}

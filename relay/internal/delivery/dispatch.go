package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/dispatch"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
)

// AddPartition registers the sinks in a partition of the log, and returns the dispatcher that fills their queues from
// it. It must be called before this node accepts notifications, so no sink misses one, and before the first change of the
// configuration.
func (s *Service) AddPartition(ctx context.Context, partition int) (*dispatch.Dispatcher, error) {
	d, err := dispatch.NewDispatcher(dispatch.Options{
		Partition: partition, Partitions: s.keys.Partitions(), Matcher: s.matcher,
		Log: s.opts.Log, Queues: s.opts.Queues, Lease: s.opts.Leases.Lease("dispatch:"+strconv.Itoa(partition), lease.DefaultTTL),
		RecordSinks: func(ctx context.Context, after string, sinks []dispatch.Sink) error {
			return s.recordSinks(ctx, partition, after, sinks)
		},
		RecordExcluded: func(n *relay.Notification, sink string) {
			s.opts.History.RecordDrop(n, history.Drop{Sink: sink, Reason: adminapi.DroppedAccountShare, Time: time.Now()})
		},
		RecordLag: func(isLagging bool) { s.opts.Log.RecordDispatchLag(partition, isLagging) },
		Retention: s.opts.Retention, Memory: s.opts.Memory,
		RetrySizes: s.opts.Deliveries.Retries.Sizes, Logger: s.log.With("component", "dispatch"),
		Observer: dispatchObserver{s.metrics, s.sinks},
	})
	if err != nil {
		return nil, err
	}
	fromStart := make(map[string]bool)
	for _, sink := range s.sinks.list() {
		fromStart[sink.name] = startsAtBeginning(sink.cfg)
	}
	if err := s.registerSinks(ctx, partition, fromStart); err != nil {
		return nil, err
	}
	s.dispatchers = append(s.dispatchers, d)
	return d, nil
}

// registerSinks stores the start position of each new sink in a partition. The map says for each sink whether it
// starts at the beginning of the log.
func (s *Service) registerSinks(ctx context.Context, partition int, fromStart map[string]bool) error {
	if len(fromStart) == 0 {
		return nil
	}
	if _, err := s.opts.Queues.EnsureSinks(ctx, partition, fromStart); err != nil {
		return fmt.Errorf("register the sinks: %w", err)
	}
	return nil
}

// newMatcher returns a matcher for the filters of the sinks.
func newMatcher(sinks []*openSink) *dispatch.Matcher {
	list := make([]dispatch.Sink, 0, len(sinks))
	for _, s := range sinks {
		description, _ := json.Marshal(newSinkFilter(s.name, s.cfg)) // strings always marshal
		list = append(list, dispatch.Sink{
			Name: s.name, Filter: s.filter, Config: description, FromStart: startsAtBeginning(s.cfg), Backlog: s.cfg.Backlog,
			BacklogBytes: int64(s.cfg.BacklogBytes), CollectsBatches: s.cfg.Batch.Wait > 0, AccountShare: s.cfg.AccountShare,
		})
	}
	return dispatch.NewMatcher(list)
}

// dispatchObserver counts the events of dispatchers.
type dispatchObserver struct {
	*metrics.Metrics
	sinks *Sinks
}

// Enqueued ignores sinks that were removed.
func (o dispatchObserver) Enqueued(sink string, n int) {
	if o.sinks.get(sink) != nil {
		o.Metrics.Enqueued(sink, n)
	}
}

// Dropped also counts in the statistics of the sink, which all nodes share.
func (o dispatchObserver) Dropped(sink string, n int64) {
	if s := o.sinks.get(sink); s != nil {
		o.Metrics.Dropped(sink, n)
		s.pipeline.CountDropped(n)
	}
}

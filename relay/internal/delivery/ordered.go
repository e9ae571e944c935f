package delivery

import (
	"context"
	"errors"

	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

// orderedConsumer is the consumer name for ordered queues on every node. A new leader therefore also receives the
// pending entries of the previous leader, before newer entries.
const orderedConsumer = "ordered"

// consumeOrdered consumes the queue of an ordered sink while this node holds its lease. A node on which the sink can make no
// attempts releases the lease.
func (s *Service) consumeOrdered(ctx context.Context, sink *openSink) error {
	leadership := s.opts.Leases.Lease("ordered:"+sink.name, lease.DefaultTTL)
	return sink.pipeline.WhileAvailable(ctx, func(ctx context.Context) error {
		return leadership.RunHeld(ctx, func(work, held context.Context) error {
			return sink.pipeline.RunAsLeader(work, held, func(ctx context.Context) error {
				return s.consumeAsLeader(ctx, held, sink)
			})
		})
	})
}

// consumeAsLeader consumes the sink's queue until ctx ends and no delivery is in flight. The end of held aborts it. It
// uses its own subscriber: when that is closed, this node reads no more and all acks are stored, so the next
// leader finds all remaining entries in order.
func (s *Service) consumeAsLeader(ctx, held context.Context, sink *openSink) error {
	// Entries may be pending on any node from the time before the sink was ordered.
	if err := s.opts.Queues.ClaimPending(ctx, sink.name, ConsumerGroup, orderedConsumer); err != nil {
		return err
	}
	queues := s.subscriberConfig(orderedConsumer)
	queues.MaxInFlight = func(string) int { return sink.cfg.Concurrency }
	queues.MaxUnflushedAcks = queues.MaxInFlight
	queues.Key = queue.OrderingKey(sink.ordering().Key)
	reader, err := subscriber.New(queues)
	if err != nil {
		return err
	}
	defer context.AfterFunc(held, reader.Abort)()
	router, err := s.newRouter(sink, reader)
	if err == nil {
		err = router.Run(ctx)
	}
	return errors.Join(err, reader.Close())
}

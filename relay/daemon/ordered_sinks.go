package daemon

import (
	"context"
	"errors"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

// orderedConsumer is the consumer name for ordered queues on every node. A new leader therefore also receives the
// pending entries of the previous leader, before newer entries.
const orderedConsumer = "ordered"

// runOrdered consumes the queue of an ordered sink while this node holds its lease.
func (d *deliveryService) runOrdered(s *openSink) func(context.Context) error {
	lease := d.stores.leases.Lease("ordered:"+s.name, leaseTime)
	return func(ctx context.Context) error {
		return lease.RunHeld(ctx, func(work, held context.Context) error {
			return s.pipeline.RunAsLeader(work, held, func(ctx context.Context) error {
				return d.readOrdered(ctx, held, s)
			})
		})
	}
}

// readOrdered consumes the sink's queue until ctx ends and no delivery is in flight. The end of held aborts it. It
// uses its own subscriber: when that is closed, this node reads no more and all acks are stored, so the next
// leader finds all remaining entries in order.
func (d *deliveryService) readOrdered(ctx, held context.Context, s *openSink) error {
	// Entries may be pending on any node from the time before the sink was ordered.
	if err := d.stores.queues.ClaimPending(ctx, s.name, consumerGroup, orderedConsumer); err != nil {
		return err
	}
	queues := d.subscriberConfig(orderedConsumer)
	queues.MaxInFlight = func(string) int { return s.cfg.Concurrency }
	queues.MaxUnflushedAcks = queues.MaxInFlight
	queues.Key = queue.OrderingKey(store.Ordering(s.cfg.Ordering).Key)
	reader, err := subscriber.New(queues)
	if err != nil {
		return err
	}
	defer context.AfterFunc(held, reader.Abort)()
	router, err := d.newRouter(s, reader)
	if err == nil {
		err = router.Run(ctx)
	}
	return errors.Join(err, reader.Close())
}

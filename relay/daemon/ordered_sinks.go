package daemon

import (
	"context"
	"errors"

	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

// orderedConsumerPrefix reads the queue of an ordered sink on whichever node holds its lease. What the former holder had in
// hand belongs to it as well, and so comes before what is newer.
const orderedConsumerPrefix = "ordered"

// runOrdered works the queue of an ordered sink while this node holds its lease.
func (d *deliveryService) runOrdered(s *openSink) func(context.Context) error {
	lease := d.stores.leases.Lease("ordered:"+s.name, leaseTime)
	return func(ctx context.Context) error {
		return lease.RunHeld(ctx, func(work, held context.Context) error {
			return s.pipeline.RunAsLeader(work, held, func(ctx context.Context) error { return d.readOrdered(ctx, held, s) })
		})
	}
}

// readOrdered hands over the sink's queue until ctx ends and nothing of it is in hand; the end of held cuts that short.
// It has a Subscriber of its own: once that is closed, this node reads no more and its acks are stored, so that the next
// holder finds everything that is left in order.
func (d *deliveryService) readOrdered(ctx, held context.Context, s *openSink) error {
	// Before the sink kept an order, any node may have had a part of the queue in hand.
	if err := d.stores.queues.ClaimPending(ctx, s.name, consumerGroup, orderedConsumerPrefix); err != nil {
		return err
	}
	queues := d.subscriberConfig(orderedConsumerPrefix)
	queues.MaxInFlight = func(string) int { return s.cfg.Concurrency }
	queues.MaxUnflushedAcks = queues.MaxInFlight
	queues.Key = queue.OrderingKey(delivery.Ordering(s.cfg.Ordering).Key)
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

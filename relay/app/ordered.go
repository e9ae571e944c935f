package app

import (
	"context"
	"errors"

	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/deliver"
	"github.com/hubrelay/hubrelay/relay/dispatch"
)

// orderedConsumer reads the queue of an ordered sink on whichever node holds its lease. What the former holder had in
// hand belongs to it as well, and so comes before what is newer.
const orderedConsumer = "ordered"

// inOrder works the queue of an ordered sink while this node holds its lease.
func (d *delivery) inOrder(s *sink) func(context.Context) error {
	lease := d.backbone.Lease("ordered:"+s.name, leaseTime)
	return func(ctx context.Context) error {
		return lease.RunHeld(ctx, func(work, held context.Context) error {
			return s.pipeline.Lead(work, held, func(ctx context.Context) error { return d.readInOrder(ctx, held, s) })
		})
	}
}

// readInOrder hands over the sink's queue until ctx ends and nothing of it is in hand; the end of held cuts that short.
// It has a Subscriber of its own: once that is closed, this node reads no more and its acks are stored, so that the next
// holder finds everything that is left in order.
func (d *delivery) readInOrder(ctx, held context.Context, s *sink) error {
	b := d.backbone
	// Before the sink kept an order, any node may have had a part of the queue in hand.
	if err := b.TakePending(ctx, s.name, consumerGroup, orderedConsumer); err != nil {
		return err
	}
	queues := d.queues(orderedConsumer)
	queues.Lanes = func(string) int { return s.cfg.Concurrency }
	queues.Unstored = queues.Lanes
	queues.Key = dispatch.Key(deliver.Ordering(s.cfg.Ordering).Key)
	subscriber, err := backbone.NewSubscriber(queues)
	if err != nil {
		return err
	}
	defer context.AfterFunc(held, subscriber.Abort)()
	router, err := d.router(s, subscriber)
	if err == nil {
		err = router.Run(ctx)
	}
	return errors.Join(err, subscriber.Close())
}

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

var (
	_ Origin = (*queueOrigin)(nil)
	_ Origin = (*claimOrigin)(nil)
)

// outcomes is the common part of both origins of a sink.
type outcomes struct {
	opts        *Options
	depth       *depthTracker
	retries     *store.Retries
	deadLetters *store.DeadLetters
}

// addDeadLetter stores a dead letter of an item, and reports whether its claim was still held.
func (o *outcomes) addDeadLetter(ctx context.Context, c store.Claim, e store.DeadLetterEntry) (held bool, err error) {
	var dropped int64
	err = store.Persist(ctx, func(ctx context.Context) error {
		dropped, held, err = o.deadLetters.Add(ctx, c, o.opts.deadLetterLimit(), e)
		return err
	})
	if err == nil && held {
		o.depth.reportDropped(dropped, "backlog")
	}
	return held, err
}

func (o *outcomes) newDeadLetter(it *Item, reason string) (store.DeadLetterEntry, error) {
	reason = store.Truncate(reason, store.MaxErrorBytes)
	return store.NewDeadLetter(it.Delivery.ID, it.Record, reason, o.orderingKey(it.Record), o.opts.Now())
}

// orderingKey is empty for an unordered sink.
func (o *outcomes) orderingKey(r *store.Record) string {
	if !o.opts.isOrdered() {
		return ""
	}
	return o.opts.Ordering.StoredKey(r.Notifications[0].Decode())
}

// queueOrigin is the origin of fresh deliveries. Their queue discards them when Handle returns nil.
type queueOrigin struct{ *outcomes }

// Complete implements [Origin].
func (o *queueOrigin) Complete(context.Context, *Item) error { return nil }

// Retry implements [Origin].
func (o *queueOrigin) Retry(ctx context.Context, it *Item, after time.Duration) error {
	body, err := it.Record.Encode()
	if err != nil {
		return err
	}
	d := store.Scheduled{ID: it.Delivery.ID, Body: body, OrderingKey: o.orderingKey(it.Record)}
	var depth int64
	err = store.Persist(ctx, func(ctx context.Context) error {
		depth, err = o.retries.Schedule(ctx, o.opts.Name, d, after, it.Record.ArrivedAt(o.opts.Now()))
		return err
	})
	if err == nil {
		o.depth.set(depth, len(body))
	}
	return err
}

// DeadLetter implements [Origin].
func (o *queueOrigin) DeadLetter(ctx context.Context, it *Item, reason string) error {
	e, err := o.newDeadLetter(it, reason)
	if err != nil {
		return err
	}
	_, err = o.addDeadLetter(ctx, store.Claim{Sink: o.opts.Name, ID: it.Delivery.ID}, e)
	return err
}

// Release implements [Origin].
func (o *queueOrigin) Release(context.Context, *Item, time.Duration) error { return nil }

// claimOrigin is the origin of scheduled deliveries. If their claim was lost, another node has claimed them. Then only
// a success is stored.
type claimOrigin struct{ *outcomes }

// Complete implements [Origin].
func (o *claimOrigin) Complete(ctx context.Context, it *Item) error {
	var nextDue bool
	err := store.Persist(ctx, func(ctx context.Context) (err error) {
		nextDue, err = o.retries.Complete(ctx, *it.Claim)
		return err
	})
	if err != nil {
		return o.reportUnsettled(it, err)
	}
	o.depth.removeOne()
	if nextDue {
		o.opts.Wake(0)
	}
	return nil
}

// Retry implements [Origin].
func (o *claimOrigin) Retry(ctx context.Context, it *Item, after time.Duration) error {
	body, err := it.Record.Encode()
	if err != nil {
		return o.reportUnsettled(it, err)
	}
	return o.reschedule(ctx, it, body, after)
}

// splitDelivery replaces a batch or digest by its parts.
func (o *claimOrigin) splitDelivery(ctx context.Context, it *Item, records []*store.Record) error {
	parts := make([]store.Scheduled, 0, len(records))
	for _, record := range records {
		body, err := record.Encode()
		if err != nil {
			return o.reportUnsettled(it, err)
		}
		parts = append(parts, store.Scheduled{ID: store.NewDeliveryID(o.opts.Now()), Body: body})
	}
	var held bool
	err := store.Persist(ctx, func(ctx context.Context) (err error) {
		held, err = o.retries.Split(ctx, *it.Claim, parts)
		return err
	})
	if err := o.checkSettled(it, held, err); err != nil {
		return err
	}
	o.opts.Wake(0)
	return nil
}

// Release implements [Origin].
func (o *claimOrigin) Release(ctx context.Context, it *Item, after time.Duration) error {
	return o.reschedule(ctx, it, it.Claim.Body, after)
}

func (o *claimOrigin) reschedule(ctx context.Context, it *Item, body string, after time.Duration) error {
	var held bool
	err := store.Persist(ctx, func(ctx context.Context) (err error) {
		held, err = o.retries.Reschedule(ctx, *it.Claim, body, after)
		return err
	})
	return o.checkSettled(it, held, err)
}

// DeadLetter implements [Origin].
func (o *claimOrigin) DeadLetter(ctx context.Context, it *Item, reason string) error {
	e, err := o.newDeadLetter(it, reason)
	if err != nil {
		return o.reportUnsettled(it, err)
	}
	return o.storeDeadLetter(ctx, it, e)
}

// deadLetterUnreadable stores a dead letter of a claim whose record cannot be decoded.
func (o *claimOrigin) deadLetterUnreadable(ctx context.Context, it *Item, cause error) error {
	reason := store.Truncate(ReasonUnreadable+": "+cause.Error(), store.MaxErrorBytes)
	return o.storeDeadLetter(ctx, it, store.NewUnreadableDeadLetter(*it.Claim, reason, o.opts.Now()))
}

func (o *claimOrigin) storeDeadLetter(ctx context.Context, it *Item, e store.DeadLetterEntry) error {
	held, err := o.addDeadLetter(ctx, *it.Claim, e)
	if err := o.checkSettled(it, held, err); err != nil {
		return err
	}
	o.depth.removeOne()
	o.opts.Wake(0) // the next delivery with its ordering key may be due
	return nil
}

func (o *claimOrigin) checkSettled(it *Item, held bool, err error) error {
	if err != nil {
		return o.reportUnsettled(it, err)
	}
	if !held {
		o.opts.Log.Warn("claim expired before the outcome of its attempt was stored", "delivery_id", it.Claim.ID)
		return errUnsettled
	}
	return nil
}

func (o *claimOrigin) reportUnsettled(it *Item, err error) error {
	o.opts.Log.Warn("outcome of an attempt could not be stored, the attempt will be repeated",
		"delivery_id", it.Claim.ID, "error", err)
	return fmt.Errorf("%w: %w", errUnsettled, err)
}

// releaseOnError releases a claimed item that a stage has not settled. The origin logs its errors, after which the
// claim expires.
func releaseOnError(ctx context.Context, it *Item, err error) {
	if err == nil || errors.Is(err, errUnsettled) {
		return
	}
	it.Permit.Cancel()
	_ = it.Origin.Release(ctx, it, 0)
}

package delivery

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

const (
	// maxBatchBytes limits a batch besides its number of notifications, of which each may have 256 KiB.
	maxBatchBytes = 4 << 20
	// DefaultBatchMax is how many notifications a batch holds where [Batch] leaves it out.
	DefaultBatchMax = 100
	// scheduledBatchWait bounds how long a batch waits for more that holds what was parked already: claims end.
	scheduledBatchWait = time.Second
)

// Batch says how notifications are gathered into deliveries that hold all of them.
type Batch struct {
	// Wait is how long a batch gathers from its first notification on; zero is no batch.
	Wait time.Duration
	// Max is how many notifications it holds, and 4 MiB of them at most: a full one is sealed at once. 100 where zero.
	Max int
}

// HandlerConcurrency is how many calls of [Pipeline.Handle] it takes to keep so many attempts busy: one call waits for each notification
// until its batch is sealed, and the next batch gathers meanwhile.
func (b Batch) HandlerConcurrency(concurrency int) int {
	return 2*cmp.Or(b.Max, DefaultBatchMax) + concurrency
}

// usesBatches tells whether the sink gets batches. A sink that keeps an order gathers nothing.
func (p *Pipeline) usesBatches() bool { return p.opts.Batch.Wait > 0 && p.order == nil }

// formatForSink is a delivery as the sink expects it.
func (p *Pipeline) formatForSink(d relay.Delivery) relay.Delivery {
	switch {
	case d.Batch && p.opts.BatchesUnsupported:
		return d.ToDigest()
	case d.Digest == nil && p.usesBatches():
		d.Batch = true // one that could not be gathered
	}
	return d
}

// errCannotSealBatch is why a notification does not go in a batch: Redis has no room to seal one, and only deliveries make room.
var errCannotSealBatch = errors.New("redis is full and seals no batch")

// batch is a batch before it is sealed. Until then all of it is in its queue or the delay queue, from where it comes again if this node dies.
type batch struct {
	items        []batchItem
	bytes        int
	full         chan struct{} // closed when it takes no more
	hasScheduled chan struct{} // closed when it holds what was claimed
	sealing      bool          // it is being sealed, or given up: nobody leaves it any more
	done         chan struct{} // closed when it was
	err          error         // of all its notifications, valid after done
}

// batchItem is a notification in a batch.
type batchItem struct {
	notification relay.Notification
	claimEnd     string // of the claim of one that was parked
	withdrawn    bool   // whoever brought it waits no longer
}

// batchBuilder is the batch of a sink that gathers now. What is full waits beside it.
type batchBuilder struct {
	max int

	mu      sync.Mutex
	open    *batch // nil where nothing gathers
	waiting int    // notifications in batches that are not sealed
}

// add puts a notification into the batch that gathers. lead says that it is the first.
func (b *batchBuilder) add(n relay.Notification, ends string) (to *batch, place int, lead bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open != nil && b.open.bytes+len(n.Data) > maxBatchBytes {
		close(b.open.full)
		b.open = nil
	}
	if to = b.open; to == nil {
		to, lead = &batch{full: make(chan struct{}), hasScheduled: make(chan struct{}), done: make(chan struct{})}, true
		b.open = to
	}
	place = len(to.items)
	to.items = append(to.items, batchItem{notification: n, claimEnd: ends})
	to.bytes += len(n.Data)
	b.waiting++
	if ends != "" {
		select {
		case <-to.hasScheduled:
		default:
			close(to.hasScheduled)
		}
	}
	if len(to.items) >= b.max {
		close(to.full)
		b.open = nil
	}
	return to, place, lead
}

// isFull tells whether as many notifications wait as lanes may bring, so that nothing that is parked should join them.
func (b *batchBuilder) isFull() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting >= 2*b.max
}

// withdraw takes a notification out again, unless its batch is being sealed.
func (b *batchBuilder) withdraw(from *batch, place int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !from.sealing {
		from.items[place].withdrawn = true
	}
	return !from.sealing
}

// beginSeal has a batch take no more, and returns what is in it in the order of the log.
func (b *batchBuilder) beginSeal(from *batch) []batchItem {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == from {
		b.open = nil
	}
	from.sealing = true
	b.waiting -= len(from.items)
	items := slices.DeleteFunc(from.items, func(m batchItem) bool { return m.withdrawn })
	slices.SortStableFunc(items, func(a, b batchItem) int { return store.CompareCursors(a.notification, b.notification) })
	return items
}

// handleBatched returns when d is sealed into a batch; who was the first in it, when the batch was attempted too.
func (p *Pipeline) handleBatched(ctx context.Context, d relay.Delivery) error {
	err := p.addToBatch(ctx, d.Notifications[0], "")
	if errors.Is(err, errCannotSealBatch) {
		return p.handle(ctx, d, false)
	}
	return err
}

// addToBatch returns an error where n is in no batch that was sealed.
func (p *Pipeline) addToBatch(ctx context.Context, n relay.Notification, ends string) error {
	b, place, lead := p.batcher.add(n, ends)
	if lead {
		return p.runBatch(ctx, b)
	}
	select {
	case <-b.done:
	case <-ctx.Done():
		if p.batcher.withdraw(b, place) {
			return ctx.Err()
		}
		<-b.done
	}
	return b.err
}

// runBatch waits until a batch is full or its time has come, then until it may be attempted, while it goes on gathering; it
// seals it and makes the first attempt. All others return once it is sealed.
func (p *Pipeline) runBatch(ctx context.Context, b *batch) error {
	err := p.waitForBatch(ctx, b)
	probe := false
	if err == nil {
		probe, err = p.admit(ctx, false)
	}
	items := p.batcher.beginSeal(b)
	if err != nil {
		b.finish(err)
		return err
	}
	c, d, err := p.sealBatch(ctx, items)
	b.finish(err)
	if err != nil || len(d.Notifications) == 0 {
		p.breaker.record(probe, false, nil)
		p.concurrency.release(1)
		p.rateLimiter.returnTokens(1)
		return err
	}
	r := store.NewRecord(d, p.opts.Now())
	p.attemptClaimed(ctx, c, r, d, probe)
	return nil
}

func (b *batch) finish(err error) {
	b.err = err
	close(b.done)
}

// waitForBatch waits until a batch need not wait for more.
func (p *Pipeline) waitForBatch(ctx context.Context, b *batch) error {
	timer := time.NewTimer(p.opts.Batch.Wait)
	defer timer.Stop()
	soon := b.hasScheduled
	for {
		select {
		case <-b.full:
			return nil
		case <-timer.C:
			return nil
		case <-soon:
			soon = nil
			timer.Reset(min(p.opts.Batch.Wait, scheduledBatchWait))
		case <-ctx.Done():
			return ctx.Err()
		case <-p.stopping.Done():
			return p.stopping.Err() // what is not sealed is still where it came from
		}
	}
}

// sealBatch makes a claimed delivery of what is in a batch. The delivery is empty where nothing was left to seal.
func (p *Pipeline) sealBatch(ctx context.Context, items []batchItem) (store.Claim, relay.Delivery, error) {
	none := relay.Delivery{}
	if len(items) == 0 {
		return store.Claim{}, none, nil
	}
	id, oldest := store.NewDeliveryID(p.opts.Now()), p.opts.Now()
	stored := make([]store.BatchItem, len(items))
	for i, m := range items {
		if at := m.notification.StoredAt(); !at.IsZero() && at.Before(oldest) {
			oldest = at
		}
		stored[i] = store.BatchItem{Notification: m.notification, LeaseEnd: m.claimEnd}
	}
	var result store.SealedBatch
	var full error
	err := retryWrite(ctx, func(ctx context.Context) (err error) {
		result, err = p.opts.Store.Batches.Seal(ctx, p.opts.Name, id, stored, p.claimDuration(), oldest)
		if err != nil && strings.Contains(err.Error(), "OOM command not allowed") {
			full, err = errCannotSealBatch, nil
		}
		return err
	})
	err = cmp.Or(err, full)
	if err != nil {
		return store.Claim{}, none, err
	}
	p.updateRetryCount(result.Depth)
	if result.IsRepeated {
		p.onRetryScheduled(0)
	}
	if result.LeaseEnd == "" {
		return store.Claim{}, none, nil
	}
	d := relay.Delivery{ID: id, Attempt: 1, Batch: true, Notifications: make([]relay.Notification, 0, len(items))}
	for i, m := range items {
		if !result.Excluded[int64(i)] {
			d.Notifications = append(d.Notifications, m.notification)
		}
	}
	p.opts.Observer.Batched(p.opts.Name, len(d.Notifications))
	return store.Claim{Sink: p.opts.Name, ID: id, LeaseEnd: result.LeaseEnd}, d, nil
}

// batchScheduled puts a claimed delivery that was never attempted, as a replay of the log parks them, into a batch, and reports
// whether it did. It holds a slot and an attempt then, which it gives back.
func (p *Pipeline) batchScheduled(ctx context.Context, c store.Claim, r *store.Record) bool {
	off, _ := p.isDisabled()
	if off || !p.usesBatches() || r.Batch || r.Digest != nil || len(r.Attempts) > 0 || len(r.Notifications) != 1 || p.batcher.isFull() {
		return false
	}
	p.concurrency.release(1)
	p.rateLimiter.returnTokens(1)
	err := p.addToBatch(ctx, r.Notifications[0].Decode(), c.LeaseEnd)
	switch {
	case err == nil: // who sealed it has heard how many are parked now
	case errors.Is(err, errCannotSealBatch):
		probe, err := p.admit(ctx, false)
		if err != nil {
			p.releaseClaim(ctx, c, c.Body)
			break
		}
		p.attemptClaimed(ctx, c, r, r.NextDelivery(c.ID), probe)
	default:
		p.releaseClaim(ctx, c, c.Body)
	}
	return true
}

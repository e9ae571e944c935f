package deliver

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// DefaultBatchMax is how many notifications a batch holds where [Batch] leaves it out.
	DefaultBatchMax = 100
	// claimedWait bounds how long a batch waits for more that holds what was parked already: claims end.
	claimedWait = time.Second
)

// Batch says how notifications are gathered into deliveries that hold all of them.
type Batch struct {
	// Wait is how long a batch gathers from its first notification on; zero is no batch.
	Wait time.Duration
	// Max is how many notifications it holds, and 4 MiB of them at most: a full one is sealed at once. 100 where zero.
	Max int
}

// Lanes is how many calls of [Pipeline.Handle] it takes to keep so many attempts busy: one call waits for each notification
// until its batch is sealed, and the next batch gathers meanwhile.
func (b Batch) Lanes(concurrency int) int { return 2*cmp.Or(b.Max, DefaultBatchMax) + concurrency }

// batches tells whether the sink gets batches. A sink that keeps an order gathers nothing.
func (p *Pipeline) batches() bool { return p.o.Batch.Wait > 0 && p.order == nil }

// inForm is a delivery as the sink expects it.
func (p *Pipeline) inForm(d relay.Delivery) relay.Delivery {
	switch {
	case d.Batch && p.o.NoBatches:
		return d.AsDigest()
	case d.Digest == nil && p.batches():
		d.Batch = true // one that could not be gathered
	}
	return d
}

// errAlone is why a notification does not go in a batch: Redis has no room to seal one, and only deliveries make room.
var errAlone = errors.New("redis is full and seals no batch")

// batch is a batch before it is sealed. Until then all of it is in its queue or the delay queue, from where it comes again if this node dies.
type batch struct {
	items []member
	bytes int
	full  chan struct{} // closed when it takes no more
	soon  chan struct{} // closed when it holds what was claimed
	taken bool          // it is being sealed, or given up: nobody leaves it any more
	done  chan struct{} // closed when it was
	err   error         // of all its notifications, valid after done
}

// member is a notification in a batch.
type member struct {
	n    relay.Notification
	ends string // of the claim of one that was parked
	gone bool   // whoever brought it waits no longer
}

// batcher is the batch of a sink that gathers now. What is full waits beside it.
type batcher struct {
	max int

	mu      sync.Mutex
	open    *batch // nil where nothing gathers
	waiting int    // notifications in batches that are not sealed
}

// join puts a notification into the batch that gathers. lead says that it is the first.
func (b *batcher) join(n relay.Notification, ends string) (to *batch, place int, lead bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open != nil && b.open.bytes+len(n.Data) > batchBytes {
		close(b.open.full)
		b.open = nil
	}
	if to = b.open; to == nil {
		to, lead = &batch{full: make(chan struct{}), soon: make(chan struct{}), done: make(chan struct{})}, true
		b.open = to
	}
	place = len(to.items)
	to.items = append(to.items, member{n: n, ends: ends})
	to.bytes += len(n.Data)
	b.waiting++
	if ends != "" {
		select {
		case <-to.soon:
		default:
			close(to.soon)
		}
	}
	if len(to.items) >= b.max {
		close(to.full)
		b.open = nil
	}
	return to, place, lead
}

// crowded tells whether as many notifications wait as lanes may bring, so that nothing that is parked should join them.
func (b *batcher) crowded() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting >= 2*b.max
}

// withdraw takes a notification out again, unless its batch is being sealed.
func (b *batcher) withdraw(from *batch, place int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !from.taken {
		from.items[place].gone = true
	}
	return !from.taken
}

// take has a batch take no more, and returns what is in it in the order of the log.
func (b *batcher) take(from *batch) []member {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == from {
		b.open = nil
	}
	from.taken = true
	b.waiting -= len(from.items)
	items := slices.DeleteFunc(from.items, func(m member) bool { return m.gone })
	slices.SortStableFunc(items, func(a, b member) int { return byCursor(a.n, b.n) })
	return items
}

// handleInBatch returns when d is sealed into a batch; who was the first in it, when the batch was attempted too.
func (p *Pipeline) handleInBatch(ctx context.Context, d relay.Delivery) error {
	err := p.inBatch(ctx, d.Notifications[0], "")
	if errors.Is(err, errAlone) {
		return p.handle(ctx, d, false)
	}
	return err
}

// inBatch returns an error where n is in no batch that was sealed.
func (p *Pipeline) inBatch(ctx context.Context, n relay.Notification, ends string) error {
	b, place, lead := p.batcher.join(n, ends)
	if lead {
		return p.leadBatch(ctx, b)
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

// leadBatch waits until a batch is full or its time has come, then until it may be attempted, while it goes on gathering; it
// seals it and makes the first attempt. All others return once it is sealed.
func (p *Pipeline) leadBatch(ctx context.Context, b *batch) error {
	err := p.gatherBatch(ctx, b)
	probe := false
	if err == nil {
		probe, err = p.enter(ctx, false)
	}
	items := p.batcher.take(b)
	if err != nil {
		b.end(err)
		return err
	}
	c, d, err := p.sealBatch(ctx, items)
	b.end(err)
	if err != nil || len(d.Notifications) == 0 {
		p.breaker.leave(probe, false, nil)
		p.slots.release(1)
		p.gate.back(1)
		return err
	}
	r := newRecord(d, p.o.Now())
	p.tryClaimed(ctx, c, r, d, probe)
	return nil
}

func (b *batch) end(err error) {
	b.err = err
	close(b.done)
}

// gatherBatch waits until a batch need not wait for more.
func (p *Pipeline) gatherBatch(ctx context.Context, b *batch) error {
	timer := time.NewTimer(p.o.Batch.Wait)
	defer timer.Stop()
	soon := b.soon
	for {
		select {
		case <-b.full:
			return nil
		case <-timer.C:
			return nil
		case <-soon:
			soon = nil
			timer.Reset(min(p.o.Batch.Wait, claimedWait))
		case <-ctx.Done():
			return ctx.Err()
		case <-p.stopping.Done():
			return p.stopping.Err() // what is not sealed is still where it came from
		}
	}
}

// sealBatch makes a claimed delivery of what is in a batch. The delivery is empty where nothing was left to seal.
func (p *Pipeline) sealBatch(ctx context.Context, items []member) (claim, relay.Delivery, error) {
	none := relay.Delivery{}
	if len(items) == 0 {
		return claim{}, none, nil
	}
	b := sealing{id: newID(p.o.Now()), lease: p.lease(), came: p.o.Now(), args: make([]any, 0, 3*len(items))}
	for _, m := range items {
		if at := m.n.Stored(); !at.IsZero() && at.Before(b.came) {
			b.came = at
		}
		b.add(newParked(m.n), m.ends)
	}
	var result sealed
	var full error
	err := persist(ctx, func(ctx context.Context) (err error) {
		result, err = p.o.Store.sealBatch(ctx, p.o.Name, &b)
		if err != nil && strings.Contains(err.Error(), "OOM command not allowed") {
			full, err = errAlone, nil
		}
		return err
	})
	err = cmp.Or(err, full)
	if err != nil {
		return claim{}, none, err
	}
	p.heardParked(result.parked)
	if result.ends == "0" {
		p.onPark(0)
	}
	if result.ends == "" || result.ends == "0" {
		return claim{}, none, nil
	}
	d := relay.Delivery{ID: b.id, Attempt: 1, Batch: true, Notifications: make([]relay.Notification, 0, len(items))}
	for i, m := range items {
		if !result.out[int64(i)] {
			d.Notifications = append(d.Notifications, m.n)
		}
	}
	p.o.Observer.Batched(p.o.Name, len(d.Notifications))
	return claim{sink: p.o.Name, id: b.id, ends: result.ends}, d, nil
}

// batchParked puts a claimed delivery that was never attempted, as a replay of the log parks them, into a batch, and reports
// whether it did. It holds a slot and an attempt then, which it gives back.
func (p *Pipeline) batchParked(ctx context.Context, c claim, r *record) bool {
	off, _ := p.isDisabled()
	if off || !p.batches() || r.Batch || r.Digest != nil || len(r.Attempts) > 0 || len(r.Notifications) != 1 || p.batcher.crowded() {
		return false
	}
	p.slots.release(1)
	p.gate.back(1)
	err := p.inBatch(ctx, r.Notifications[0].notification(), c.ends)
	switch {
	case err == nil: // who sealed it has heard how many are parked now
	case errors.Is(err, errAlone):
		probe, err := p.enter(ctx, false)
		if err != nil {
			p.giveBack(ctx, c, c.body)
			break
		}
		p.tryClaimed(ctx, c, r, r.delivery(c.id), probe)
	default:
		p.giveBack(ctx, c, c.body)
	}
	return true
}

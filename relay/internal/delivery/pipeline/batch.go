package pipeline

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	// DefaultBatchMax is the default of [Batch].Max.
	DefaultBatchMax = 100
	// maxBatchBytes limits the notifications of a batch, each of up to 256 KiB.
	maxBatchBytes = 4 << 20
	// claimedBatchWait limits the wait of a batch that contains claimed notifications, because claims expire.
	claimedBatchWait = time.Second
)

// Batch configures batches, which are deliveries that contain many notifications in full.
type Batch struct {
	// Wait is the time from the first notification of a batch until it is sealed. 0 disables batches.
	Wait time.Duration
	// Max is the maximum number of notifications in a batch, up to 4 MiB of them. A full batch is sealed at once. The
	// default is 100.
	Max int
	// ByAccount keeps the notifications of different accounts apart.
	ByAccount bool
}

// HandlerConcurrency returns the number of concurrent calls of [Pipeline.Handle] that keep this number of attempts
// busy. One call waits for each notification until its batch is sealed, and during that time the next batch is filled.
func (b Batch) HandlerConcurrency(concurrency int) int {
	return 2*cmp.Or(b.Max, DefaultBatchMax) + concurrency
}

// errRedisFull reports that a notification goes alone, because Redis has no memory to seal a batch, and only deliveries
// free memory.
var errRedisFull = errors.New("redis is full and seals no batch")

// batchStage collects items into batches. The item that starts a batch is its leader: it waits until the batch is full
// or late and an attempt may start, seals the batch in Redis, and passes the sealed batch on. The other items wait
// until the batch is sealed. Before that, all items are still in their queues, which deliver them again if this node is
// killed.
type batchStage struct {
	next      Handler
	opts      *Options
	admission *admission.Admission
	depth     *depthTracker
	origin    Origin // of sealed batches, which are claimed
	stopping  context.Context
	store     *store.Batches
	collector batchCollector
}

func (s *batchStage) Handle(ctx context.Context, it *Item) error {
	leaseEnd := ""
	if it.Claim != nil {
		if !it.isReplayed() || it.Record.Batch || s.collector.isFull() {
			return s.next.Handle(ctx, it)
		}
		it.Permit.Cancel() // the batch gets its own
		leaseEnd = it.Claim.LeaseEnd
	}
	err := s.add(ctx, it.Delivery.Notifications[0], leaseEnd)
	if errors.Is(err, errRedisFull) {
		return s.next.Handle(ctx, it)
	}
	return err
}

// add returns an error if n is in no sealed batch.
func (s *batchStage) add(ctx context.Context, n relay.Notification, leaseEnd string) error {
	b, index, isLeader := s.collector.add(n, leaseEnd)
	if isLeader {
		return s.leadBatch(ctx, b)
	}
	select {
	case <-b.sealed:
	case <-ctx.Done():
		if s.collector.withdrawItem(b, index) {
			return ctx.Err()
		}
		<-b.sealed
	}
	return b.err
}

// leadBatch waits until a batch is complete and may be attempted, during which more notifications are added. It then
// seals the batch and makes the first attempt.
func (s *batchStage) leadBatch(ctx context.Context, b *batch) error {
	sealed := &Item{Origin: s.origin}
	defer sealed.Permit.Cancel()
	err := s.waitComplete(ctx, b)
	if err == nil {
		err = s.admission.Acquire(ctx, &sealed.Permit)
	}
	items := s.collector.beginSeal(b)
	if err == nil {
		err = s.sealBatch(ctx, sealed, items)
	}
	b.err = err
	close(b.sealed)
	if err != nil || sealed.Claim == nil {
		return err
	}
	releaseOnError(ctx, sealed, s.next.Handle(ctx, sealed))
	return nil
}

// waitComplete waits until a batch is full or late.
func (s *batchStage) waitComplete(ctx context.Context, b *batch) error {
	timer := time.NewTimer(s.opts.Batch.Wait)
	defer timer.Stop()
	hasClaimed := b.hasClaimed
	for {
		select {
		case <-b.full:
			return nil
		case <-timer.C:
			return nil
		case <-hasClaimed:
			hasClaimed = nil
			timer.Reset(min(s.opts.Batch.Wait, claimedBatchWait))
		case <-ctx.Done():
			return ctx.Err()
		case <-s.stopping.Done():
			return s.stopping.Err() // the items are still in their queues
		}
	}
}

// sealBatch makes it a claimed delivery of the items. it has no claim if nothing was left to seal.
func (s *batchStage) sealBatch(ctx context.Context, it *Item, items []batchItem) error {
	o := s.opts
	items = slices.DeleteFunc(items, func(item batchItem) bool { // claimed ones have a record
		return item.LeaseEnd == "" && o.IsErased(&item.Notification)
	})
	if len(items) == 0 {
		return nil
	}
	id, oldest := store.NewDeliveryID(o.Now()), o.Now()
	stored := make([]store.BatchItem, len(items))
	for i, item := range items {
		stored[i] = item.BatchItem
		if at := item.Notification.StoredAt(); !at.IsZero() && at.Before(oldest) {
			oldest = at
		}
	}
	var result store.SealedBatch
	var full error
	err := store.Persist(ctx, func(ctx context.Context) (err error) {
		result, err = s.store.Seal(ctx, o.Name, id, stored, o.claimDuration(), oldest)
		if redisconn.IsOutOfMemory(err) {
			full, err = errRedisFull, nil
		}
		return err
	})
	if err = cmp.Or(err, full); err != nil {
		return err
	}
	s.depth.set(result.Depth, 0)
	if result.IsRepeated {
		o.Wake(0)
	}
	if result.LeaseEnd == "" {
		return nil
	}
	it.Delivery = relay.Delivery{Attempt: 1, Batch: true}
	it.Delivery.Notifications = make([]relay.Notification, 0, len(items))
	for i, item := range items {
		if !result.Excluded[int64(i)] {
			it.Delivery.Notifications = append(it.Delivery.Notifications, item.Notification)
		}
	}
	it.Delivery.ID = store.BatchID(it.Delivery.Notifications)
	it.Claim = &store.Claim{Sink: o.Name, ID: id, LeaseEnd: result.LeaseEnd}
	o.Observer.Batched(o.Name, len(it.Delivery.Notifications))
	return nil
}

// batch is a batch that is not sealed yet.
type batch struct {
	group      string // in batchCollector.open
	items      []batchItem
	bytes      int
	isSealing  bool
	full       chan struct{} // closed when it takes no more
	hasClaimed chan struct{} // closed when it contains a claimed notification
	sealed     chan struct{} // closed when it was sealed, or when that failed
	err        error         // of all its items, valid after sealed
}

type batchItem struct {
	store.BatchItem
	isWithdrawn bool // its caller no longer waits
}

// batchCollector fills the batches of a sink. It may be used concurrently.
type batchCollector struct {
	max       int
	byAccount bool

	mu      sync.Mutex
	open    map[string]*batch // by account, or under "" if all accounts share one
	waiting int               // notifications in batches that are not sealed
}

// add adds a notification to the open batch. isLeader is set if it is the first.
func (c *batchCollector) add(n relay.Notification, leaseEnd string) (b *batch, index int, isLeader bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	group := ""
	if c.byAccount {
		group = n.Account
	}
	b = c.open[group]
	if b != nil && b.bytes+len(n.Data) > maxBatchBytes {
		close(b.full)
		b = nil
	}
	if b == nil {
		b = &batch{
			group: group, full: make(chan struct{}), hasClaimed: make(chan struct{}), sealed: make(chan struct{}),
		}
		if c.open == nil {
			c.open = make(map[string]*batch)
		}
		c.open[group], isLeader = b, true
	}
	index = len(b.items)
	b.items = append(b.items, batchItem{BatchItem: store.BatchItem{Notification: n, LeaseEnd: leaseEnd}})
	b.bytes += len(n.Data)
	c.waiting++
	if leaseEnd != "" {
		select {
		case <-b.hasClaimed:
		default:
			close(b.hasClaimed)
		}
	}
	if len(b.items) >= c.max {
		close(b.full)
		delete(c.open, group)
	}
	return b, index, isLeader
}

// isFull reports whether as many notifications wait as fresh deliveries may bring, so claimed ones should not join
// them.
func (c *batchCollector) isFull() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting >= 2*c.max
}

// withdrawItem removes a notification unless its batch is being sealed.
func (c *batchCollector) withdrawItem(b *batch, index int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !b.isSealing {
		b.items[index].isWithdrawn = true
	}
	return !b.isSealing
}

// beginSeal closes a batch and returns its items in the order of the log.
func (c *batchCollector) beginSeal(b *batch) []batchItem {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[b.group] == b {
		delete(c.open, b.group)
	}
	b.isSealing = true
	c.waiting -= len(b.items)
	items := slices.DeleteFunc(b.items, func(item batchItem) bool { return item.isWithdrawn })
	slices.SortStableFunc(items, func(a, b batchItem) int {
		return store.CompareCursors(a.Notification, b.Notification)
	})
	return items
}

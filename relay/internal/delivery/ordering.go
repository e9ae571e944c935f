package delivery

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

const (
	// keyLockWait is how long a claimed delivery waits for another of its key that is in flight, and is put off then.
	keyLockWait = 100 * time.Millisecond
	// blockedKeysInterval is how often the blocked keys are read anew, to forget those that are not blocked any more.
	blockedKeysInterval = 30 * time.Second
)

// errNotLeading is returned for a delivery that another node is to take.
var errNotLeading = errors.New("another node works the queue of this ordered sink")

// orderingState is what the one node that works an ordered sink's queue knows of its keys. What the order rests on is the line
// that a key has in Redis: a fresh delivery goes ahead only where nothing of its key is parked, and of those that are
// parked only the first is ever due. A nil order keeps none.
type orderingState struct {
	mode store.Ordering
	// refresh asks for the blocked keys to be read anew.
	refresh chan struct{}

	mu       sync.Mutex
	leaseCtx context.Context // ends when the sink's lease is lost; nil while this node does not lead
	running  sync.WaitGroup  // of what began while it led
	inFlight map[string]chan struct{}
	// blocked holds at least every key that has a line, and when it got there: nothing fresh of such a key is attempted
	// before Redis was asked.
	blocked map[string]uint64
	version uint64
}

func newOrder(of store.Ordering) *orderingState {
	if !of.IsOrdered() {
		return nil
	}
	return &orderingState{
		mode: of, refresh: make(chan struct{}, 1), inFlight: make(map[string]chan struct{}), blocked: make(map[string]uint64),
	}
}

// isLeader tells whether this node may attempt the sink's deliveries.
func (o *orderingState) isLeader() bool {
	if o == nil {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.leaseCtx != nil
}

// requestRefresh says that deliveries may have been parked from outside.
func (o *orderingState) requestRefresh() {
	if o == nil {
		return
	}
	select {
	case o.refresh <- struct{}{}:
	default:
	}
}

// beginWork counts what is about to be done as running until running.Done. It returns the context of the lease, or nil where
// this node does not lead and nothing may begin.
func (o *orderingState) beginWork() (held context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.leaseCtx != nil {
		o.running.Add(1)
	}
	return o.leaseCtx
}

// lockKey takes the turn of a key. Where the key is blocked or in flight it returns false, since when it is blocked, and
// what is closed when it is no longer in flight.
func (o *orderingState) lockKey(key string) (since uint64, flying <-chan struct{}, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	since, blocked := o.blocked[key]
	other, busy := o.inFlight[key]
	if blocked || busy {
		return since, other, false
	}
	o.inFlight[key] = make(chan struct{})
	return 0, nil, true
}

// lockScheduledKey takes the turn of a key for a delivery that is parked, which blocks the key too. It waits a moment for
// another of the key, which may just be over.
func (o *orderingState) lockScheduledKey(ctx context.Context, key string) bool {
	o.blockKey(key)
	ctx, cancel := context.WithTimeout(ctx, keyLockWait)
	defer cancel()
	for {
		o.mu.Lock()
		other, busy := o.inFlight[key]
		if !busy {
			o.inFlight[key] = make(chan struct{})
		}
		o.mu.Unlock()
		if !busy {
			return true
		}
		select {
		case <-other:
		case <-ctx.Done():
			return false
		}
	}
}

func (o *orderingState) unlockKey(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.inFlight[key])
	delete(o.inFlight, key)
}

// blockKey must be called between parking a delivery of the key and the end of its turn.
func (o *orderingState) blockKey(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.version++
	o.blocked[key] = o.version
}

// unblockKey forgets that a key was blocked since then, unless it was blocked again.
func (o *orderingState) unblockKey(key string, since uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.blocked[key] == since {
		delete(o.blocked, key)
	}
}

// replaceBlocked replaces what was blocked before the clock stood there by what Redis said after that.
func (o *orderingState) replaceBlocked(clock uint64, keys []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.blocked, func(_ string, since uint64) bool { return since <= clock })
	o.version++
	for _, key := range keys {
		o.blocked[key] = o.version
	}
}

func (o *orderingState) currentVersion() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.version
}

func (o *orderingState) becomeLeader(held context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leaseCtx = held
}

func (o *orderingState) stepDown() {
	o.mu.Lock()
	o.leaseCtx = nil
	o.mu.Unlock()
	o.running.Wait()
}

// Ordered tells whether the sink keeps an order, and needs a node that leads.
func (p *Pipeline) Ordered() bool { return p.order != nil }

// RunAsLeader makes this node the one that works the queue of an ordered sink while work runs, which is to hand the queue's
// deliveries to Handle, those of one key one after the other. Whoever calls it holds a lease: when ctx ends the work
// may wind down; when held ends too, running retries are cut short, as the work is to do with the contexts of Handle.
// Lead returns when nothing is running any more.
func (p *Pipeline) RunAsLeader(ctx, held context.Context, work func(context.Context) error) error {
	o := p.order
	if o == nil {
		return errors.New("the sink keeps no order and needs nobody who leads")
	}
	if err := p.refreshBlockedKeys(ctx); err != nil {
		return err
	}
	o.becomeLeader(held)
	p.onRetryScheduled(0)
	p.opts.Log.Info("this node works the queue of the sink, which keeps an order")
	follow, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() { p.watchBlockedKeys(follow) })
	defer func() {
		cancel()
		following.Wait()
		o.stepDown()
	}()
	return work(ctx)
}

// refreshBlockedKeys asks Redis which keys are blocked.
func (p *Pipeline) refreshBlockedKeys(ctx context.Context) error {
	clock := p.order.currentVersion()
	keys, err := p.opts.Store.Orders.Keys(ctx, p.opts.Name)
	if err != nil {
		return err
	}
	p.order.replaceBlocked(clock, keys)
	return nil
}

func (p *Pipeline) watchBlockedKeys(ctx context.Context) {
	look := time.NewTimer(blockedKeysInterval)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-p.order.refresh:
		}
		began := time.Now()
		if err := p.refreshBlockedKeys(ctx); err != nil && ctx.Err() == nil {
			p.opts.Log.Warn("cannot read which keys have deliveries parked; trying again soon", "error", err)
			look.Reset(errorRetryInterval)
			continue
		}
		look.Reset(nextRefresh(time.Since(began)))
	}
}

// nextRefresh is when to read the blocked keys anew after that took so long: a million of them must not keep Redis busy.
func nextRefresh(took time.Duration) time.Duration { return max(blockedKeysInterval, 20*took) }

// handleOrdered attempts a fresh delivery where nothing of its key is parked, and parks it behind the others else.
func (p *Pipeline) handleOrdered(ctx context.Context, d relay.Delivery) error {
	if p.order.beginWork() == nil {
		return errNotLeading
	}
	defer p.order.running.Done()
	key := p.order.mode.StoredKey(d.Notifications[0])
	for {
		since, flying, ok := p.order.lockKey(key)
		if ok {
			defer p.order.unlockKey(key)
			return p.handle(ctx, d, false)
		}
		if held, err := p.enqueueBehindKey(ctx, d, key); held || err != nil {
			return err
		}
		p.order.unblockKey(key, since)
		if flying != nil {
			select {
			case <-flying:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// enqueueBehindKey parks a fresh delivery behind those of its key that are parked. It reports false where there are none.
func (p *Pipeline) enqueueBehindKey(ctx context.Context, d relay.Delivery, key string) (held bool, err error) {
	if err := p.waitForCapacity(ctx); err != nil {
		return false, err
	}
	r := store.NewRecord(d, time.Time{})
	body, err := r.Encode()
	if err != nil {
		return false, err
	}
	var parked int64
	err = retryWrite(ctx, func(ctx context.Context) error {
		parked, held, err = p.opts.Store.Orders.Hold(
			ctx, p.opts.Name, store.Scheduled{ID: d.ID, Body: body, OrderingKey: key}, r.ArrivedAt(p.opts.Now()))
		return err
	})
	if held {
		p.order.blockKey(key)
		p.updateRetryCount(parked)
	}
	return held, err
}

// waitForCapacity waits until the sink takes deliveries and there is room in the delay queue.
func (p *Pipeline) waitForCapacity(ctx context.Context) error {
	p.mu.Lock()
	changed := p.stateChanged
	p.mu.Unlock()
	if err := p.waitAdmissible(ctx, changed); err != nil {
		return err
	}
	if off, known := p.isDisabled(); off && known {
		return ErrDisabled
	}
	return ctx.Err()
}

// orderingKey is the key of a parked delivery, empty where the sink keeps no order.
func (p *Pipeline) orderingKey(r *store.Record) string {
	if p.order == nil {
		return ""
	}
	return p.order.mode.StoredKey(r.Notifications[0].Decode())
}

// retryOrdered retries a claimed delivery unless another of its key is in flight.
func (p *Pipeline) retryOrdered(ctx context.Context, c store.Claim, r *store.Record) {
	lease := p.order.beginWork()
	if lease == nil {
		p.concurrency.release(1)
		p.rateLimiter.returnTokens(1)
		p.releaseClaim(ctx, c, c.Body)
		return
	}
	defer p.order.running.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(lease, cancel)()
	key := p.orderingKey(r)
	if !p.order.lockScheduledKey(ctx, key) {
		p.concurrency.release(1)
		p.rateLimiter.returnTokens(1)
		p.settleClaim(ctx, c, func(ctx context.Context) (bool, error) {
			return p.opts.Store.Retries.Reschedule(ctx, c, c.Body, keyLockWait)
		})
		return
	}
	defer p.order.unlockKey(key)
	p.retryDecoded(ctx, c, r, nil)
}

package deliver

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// takeTurn is how long a claimed delivery waits for another of its key that is in flight, and is put off then.
	takeTurn = 100 * time.Millisecond
	// linesLook is how often the blocked keys are read anew, to forget those that are not blocked any more.
	linesLook = 30 * time.Second
)

// errNotLeading is returned for a delivery that another node is to take.
var errNotLeading = errors.New("another node works the queue of this ordered sink")

// order is what the one node that works an ordered sink's queue knows of its keys. What the order rests on is the line
// that a key has in Redis: a fresh delivery goes ahead only where nothing of its key is parked, and of those that are
// parked only the first is ever due. A nil order keeps none.
type order struct {
	of Ordering
	// stale asks for the blocked keys to be read anew.
	stale chan struct{}

	mu      sync.Mutex
	held    context.Context // ends when the sink's lease is lost; nil while this node does not lead
	running sync.WaitGroup  // of what began while it led
	flying  map[string]chan struct{}
	// blocked holds at least every key that has a line, and when it got there: nothing fresh of such a key is attempted
	// before Redis was asked.
	blocked map[string]uint64
	clock   uint64
}

func newOrder(of Ordering) *order {
	if !of.keeps() {
		return nil
	}
	return &order{
		of: of, stale: make(chan struct{}, 1), flying: make(map[string]chan struct{}), blocked: make(map[string]uint64),
	}
}

// leads tells whether this node may attempt the sink's deliveries.
func (o *order) leads() bool {
	if o == nil {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.held != nil
}

// changed says that deliveries may have been parked from outside.
func (o *order) changed() {
	if o == nil {
		return
	}
	select {
	case o.stale <- struct{}{}:
	default:
	}
}

// join counts what is about to be done as running until running.Done. It returns the context of the lease, or nil where
// this node does not lead and nothing may begin.
func (o *order) join() (held context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held != nil {
		o.running.Add(1)
	}
	return o.held
}

// begin takes the turn of a key. Where the key is blocked or in flight it returns false, since when it is blocked, and
// what is closed when it is no longer in flight.
func (o *order) begin(key string) (since uint64, flying <-chan struct{}, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	since, blocked := o.blocked[key]
	other, busy := o.flying[key]
	if blocked || busy {
		return since, other, false
	}
	o.flying[key] = make(chan struct{})
	return 0, nil, true
}

// beginParked takes the turn of a key for a delivery that is parked, which blocks the key too. It waits a moment for
// another of the key, which may just be over.
func (o *order) beginParked(ctx context.Context, key string) bool {
	o.block(key)
	ctx, cancel := context.WithTimeout(ctx, takeTurn)
	defer cancel()
	for {
		o.mu.Lock()
		other, busy := o.flying[key]
		if !busy {
			o.flying[key] = make(chan struct{})
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

func (o *order) end(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.flying[key])
	delete(o.flying, key)
}

// block must be called between parking a delivery of the key and the end of its turn.
func (o *order) block(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clock++
	o.blocked[key] = o.clock
}

// free forgets that a key was blocked since then, unless it was blocked again.
func (o *order) free(key string, since uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.blocked[key] == since {
		delete(o.blocked, key)
	}
}

// renew replaces what was blocked before the clock stood there by what Redis said after that.
func (o *order) renew(clock uint64, keys []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.blocked, func(_ string, since uint64) bool { return since <= clock })
	o.clock++
	for _, key := range keys {
		o.blocked[key] = o.clock
	}
}

func (o *order) now() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.clock
}

func (o *order) lead(held context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = held
}

func (o *order) resign() {
	o.mu.Lock()
	o.held = nil
	o.mu.Unlock()
	o.running.Wait()
}

// Ordered tells whether the sink keeps an order, and needs a node that leads.
func (p *Pipeline) Ordered() bool { return p.order != nil }

// Lead makes this node the one that works the queue of an ordered sink while work runs, which is to hand the queue's
// deliveries to Handle, those of one key one after the other. Whoever calls it holds a lease: when ctx ends the work
// may wind down; when held ends too, running retries are cut short, as the work is to do with the contexts of Handle.
// Lead returns when nothing is running any more.
func (p *Pipeline) Lead(ctx, held context.Context, work func(context.Context) error) error {
	o := p.order
	if o == nil {
		return errors.New("the sink keeps no order and needs nobody who leads")
	}
	if err := p.readLines(ctx); err != nil {
		return err
	}
	o.lead(held)
	p.onPark(0)
	p.o.Log.Info("this node works the queue of the sink, which keeps an order")
	follow, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() { p.followLines(follow) })
	defer func() {
		cancel()
		following.Wait()
		o.resign()
	}()
	return work(ctx)
}

// readLines asks Redis which keys are blocked.
func (p *Pipeline) readLines(ctx context.Context) error {
	clock := p.order.now()
	keys, err := p.o.Store.lines(ctx, p.o.Name)
	if err != nil {
		return err
	}
	p.order.renew(clock, keys)
	return nil
}

func (p *Pipeline) followLines(ctx context.Context) {
	look := time.NewTimer(linesLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-p.order.stale:
		}
		began := time.Now()
		if err := p.readLines(ctx); err != nil && ctx.Err() == nil {
			p.o.Log.Warn("cannot read which keys have deliveries parked; trying again soon", "error", err)
			look.Reset(errorLook)
			continue
		}
		look.Reset(lookAfter(time.Since(began)))
	}
}

// lookAfter is when to read the blocked keys anew after that took so long: a million of them must not keep Redis busy.
func lookAfter(took time.Duration) time.Duration { return max(linesLook, 20*took) }

// handleInOrder attempts a fresh delivery where nothing of its key is parked, and parks it behind the others else.
func (p *Pipeline) handleInOrder(ctx context.Context, d relay.Delivery) error {
	if p.order.join() == nil {
		return errNotLeading
	}
	defer p.order.running.Done()
	key := p.order.of.lineKey(d.Notifications[0])
	for {
		since, flying, ok := p.order.begin(key)
		if ok {
			defer p.order.end(key)
			return p.handle(ctx, d, false)
		}
		if held, err := p.hold(ctx, d, key); held || err != nil {
			return err
		}
		p.order.free(key, since)
		if flying != nil {
			select {
			case <-flying:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// hold parks a fresh delivery behind those of its key that are parked. It reports false where there are none.
func (p *Pipeline) hold(ctx context.Context, d relay.Delivery, key string) (held bool, err error) {
	if err := p.ready(ctx); err != nil {
		return false, err
	}
	r := newRecord(d, time.Time{})
	body, err := r.encode()
	if err != nil {
		return false, err
	}
	var parked int64
	err = persist(ctx, func(ctx context.Context) error {
		parked, held, err = p.o.Store.hold(ctx, p.o.Name, d.ID, body, r.came(p.o.Now()), key)
		return err
	})
	if held {
		p.order.block(key)
		p.heardParked(parked)
	}
	return held, err
}

// ready waits until the sink takes deliveries and there is room in the delay queue.
func (p *Pipeline) ready(ctx context.Context) error {
	p.mu.Lock()
	changed := p.changed
	p.mu.Unlock()
	if err := p.held(ctx, changed); err != nil {
		return err
	}
	if off, known := p.isDisabled(); off && known {
		return ErrDisabled
	}
	return ctx.Err()
}

// keyOf is the key of a parked delivery, empty where the sink keeps no order.
func (p *Pipeline) keyOf(r *record) string {
	if p.order == nil {
		return ""
	}
	return p.order.of.lineKey(r.Notifications[0].notification())
}

// retryInOrder retries a claimed delivery unless another of its key is in flight.
func (p *Pipeline) retryInOrder(ctx context.Context, c claim, r *record) {
	lease := p.order.join()
	if lease == nil {
		p.slots.release(1)
		p.gate.back(1)
		p.giveBack(ctx, c, c.body)
		return
	}
	defer p.order.running.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(lease, cancel)()
	key := p.keyOf(r)
	if !p.order.beginParked(ctx, key) {
		p.slots.release(1)
		p.gate.back(1)
		p.settle(ctx, c, func(ctx context.Context) (bool, error) { return p.o.Store.again(ctx, c, c.body, takeTurn) })
		return
	}
	defer p.order.end(key)
	p.retryRecord(ctx, c, r, nil)
}

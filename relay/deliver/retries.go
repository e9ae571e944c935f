package deliver

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// idleLook is how often a sink is looked at without a hint: for what another node parked, and for its state.
	idleLook = 5 * time.Second
	// lookGrid gathers idle looks, so that many sinks cost few wake-ups.
	lookGrid = 250 * time.Millisecond
	// errorLook is the pause after Redis did not answer.
	errorLook = time.Second
	// changesLook is how often a node asks whether anybody paused, resumed or replayed something.
	changesLook = time.Second
	// claimMargin is what a claim lasts longer than an attempt may take, to settle it.
	claimMargin = 8 * time.Second
	// sweepMost is how many sinks are asked about in one go.
	sweepMost = 128
	lookTime  = 5 * time.Second
)

// Retries tries again what pipelines have parked: one goroutine for all sinks of a node, however many there are. Other
// nodes do the same; a delivery is claimed by one of them. A node that is killed gives up its claims by and by.
type Retries struct {
	o    RetriesOptions
	wake chan struct{}
	seen string // what Store.changes said last

	mu    sync.Mutex
	sinks map[string]*due
}

// due is what is known of one sink's delay queue.
type due struct {
	p      *Pipeline
	busy   sync.WaitGroup  // looks and retries; grows from zero only under the lock of Retries
	ctx    context.Context // ends with cut, and with it the retries
	cut    context.CancelFunc
	next   time.Time // when the sink is to be looked at
	idle   time.Time // when its state is to be looked at
	hinted bool      // next is a due time, not an idle look
}

// RetriesOptions describe a [Retries].
type RetriesOptions struct {
	Store *Store
	// Grace is how long running attempts may go on after the context of Run has ended.
	Grace time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// NewRetries returns a Retries without sinks.
func NewRetries(o RetriesOptions) *Retries {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Retries{o: o, wake: make(chan struct{}, 1), sinks: make(map[string]*due)}
}

// Add makes r responsible for p, whose Handle must not have been called yet. A pipeline of the same name is replaced.
func (r *Retries) Add(p *Pipeline) {
	d := &due{p: p, next: time.Now(), hinted: true}
	d.ctx, d.cut = context.WithCancel(context.Background())
	p.onPark = func(wait time.Duration) { r.hint(d, wait) }
	p.slots.ready = func() { r.hint(d, 0) }
	p.gate.ready = func() { r.hint(d, 0) }
	p.breaker.changed = func(wait time.Duration) { r.hint(d, wait) }
	r.mu.Lock()
	r.sinks[p.Name()] = d
	r.mu.Unlock()
	r.poke()
}

// Cut ends the retries of p that run, which are given back, and begins no other.
func (r *Retries) Cut(p *Pipeline) {
	r.mu.Lock()
	d := r.sinks[p.Name()]
	r.mu.Unlock()
	if d != nil && d.p == p {
		p.Stop()
		d.cut()
	}
}

// Remove lets go of p and returns when what it has claimed is settled and its figures are stored. When ctx ends, retries are
// cut. What is parked stays parked.
func (r *Retries) Remove(ctx context.Context, p *Pipeline) {
	r.mu.Lock()
	d := r.sinks[p.Name()]
	if d == nil || d.p != p {
		r.mu.Unlock()
		return
	}
	delete(r.sinks, p.Name())
	r.mu.Unlock()
	p.Stop()
	stop := context.AfterFunc(ctx, d.cut)
	d.busy.Wait()
	stop()
	d.cut()
	r.report(context.WithoutCancel(ctx), []*Pipeline{p}, true)
}

func (r *Retries) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// hint says that something of the sink is due after wait.
func (r *Retries) hint(d *due, wait time.Duration) {
	at := time.Now().Add(wait)
	r.mu.Lock()
	sooner := at.Before(d.next) || !d.hinted && !at.After(d.next)
	if sooner {
		d.next, d.hinted = at, true
	}
	r.mu.Unlock()
	if sooner {
		r.poke()
	}
}

// Run works until ctx ends and all claimed deliveries are settled or given back. It returns nil.
func (r *Retries) Run(ctx context.Context) error {
	// What waits for a destination that is down need not wait for the grace.
	defer context.AfterFunc(ctx, r.stopAll)()
	// Attempts outlive ctx by the grace, lest a receiver that has it already gets it again.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(r.o.Grace):
			stop()
		case <-work.Done():
		}
	})()
	var running sync.WaitGroup
	defer running.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	changes := time.NewTicker(changesLook)
	defer changes.Stop()
	for {
		timer.Reset(time.Until(r.earliest()))
		select {
		case <-ctx.Done():
			return nil
		case <-changes.C:
			r.followChanges(ctx)
			r.tell(ctx, false)
		case <-timer.C:
		case <-r.wake:
		}
		if ctx.Err() != nil {
			return nil
		}
		r.sweep(ctx, func(d *due, c claim) {
			d.busy.Add(1)
			running.Go(func() {
				defer d.busy.Done()
				ctx, stop := context.WithCancel(work)
				defer stop()
				defer context.AfterFunc(d.ctx, stop)()
				d.p.retry(ctx, c)
			})
		})
	}
}

func (r *Retries) stopAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.sinks {
		d.p.stop()
	}
}

// followChanges looks at all sinks where something was changed from outside. Where Redis does not answer, idle looks
// find the change later.
func (r *Retries) followChanges(ctx context.Context) {
	if r.idle() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	n, err := r.o.Store.changes(ctx)
	if err != nil || n == r.seen {
		return
	}
	r.seen = n
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.sinks {
		d.idle, d.next = now, now
		d.p.order.changed()
	}
}

func (r *Retries) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sinks) == 0
}

func (r *Retries) earliest() time.Time {
	at := time.Now().Add(time.Minute)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.sinks {
		if d.next.Before(at) {
			at = d.next
		}
	}
	return at
}

// retry makes the next attempt of a claimed delivery and settles it. It holds a slot already.
func (p *Pipeline) retry(ctx context.Context, c claim) {
	r, err := decodeRecord(c.body)
	if p.order != nil && err == nil {
		p.retryInOrder(ctx, c, r)
		return
	}
	if err == nil && (p.gatherParked(ctx, c, r) || p.batchParked(ctx, c, r)) {
		return
	}
	p.retryRecord(ctx, c, r, err)
}

func (p *Pipeline) retryRecord(ctx context.Context, c claim, r *record, err error) {
	off, _ := p.isDisabled()
	probe, ok := false, false
	if !off && err == nil && p.gate.rests() == 0 {
		probe, ok = p.breaker.enter()
	}
	if !ok {
		p.slots.release(1)
		p.gate.back(1)
		if !off && err != nil {
			p.discard(ctx, c, err)
			return
		}
		p.giveBack(ctx, c, c.body)
		return
	}
	p.tryClaimed(ctx, c, r, r.delivery(c.id), probe)
}

// tryClaimed attempts a claimed delivery, for which a slot is held, and settles it. d is r's next attempt.
func (p *Pipeline) tryClaimed(ctx context.Context, c claim, r *record, d relay.Delivery, probe bool) {
	if r.First.IsZero() { // it was taken back from the dead letters or the log
		r.First = p.o.Now().UTC().Round(time.Millisecond)
	}
	made, cause := p.attempt(ctx, d, probe)
	p.slots.release(1)
	outcome, named := relay.Classify(cause)
	if outcome == relay.OutcomeRetry && ctx.Err() != nil {
		p.giveBack(ctx, c, c.body)
		return
	}
	if outcome == relay.OutcomeDelivered {
		p.failing.over() // done tells Redis, whether this node knew of failures or not
		p.finish(ctx, c)
		return
	}
	r.add(newAttempt(made.began, made.took, cause))
	if outcome == relay.OutcomeGone {
		p.disable(ctx, cause)
		p.giveBack(ctx, c, c.body)
		return
	}
	if p.judge(ctx, outcome, cause) {
		p.giveBack(ctx, c, c.body)
		return
	}
	wait, more := p.o.Schedule.Next(r.Made, p.o.Now().Sub(r.First), named, p.o.Random())
	if outcome == relay.OutcomeRetry && more {
		p.parkAgain(ctx, c, r, wait, cause)
		return
	}
	p.bury(ctx, c, r, outcome, cause)
}

func (p *Pipeline) parkAgain(ctx context.Context, c claim, r *record, wait time.Duration, cause error) {
	body, err := r.encode()
	if err != nil {
		p.unsettled(c, err)
		return
	}
	if p.settle(ctx, c, func(ctx context.Context) (bool, error) { return p.o.Store.again(ctx, c, body, wait) }) {
		p.parked(c.id, r, wait, cause)
	}
}

func (p *Pipeline) bury(ctx context.Context, c claim, r *record, outcome relay.Outcome, cause error) {
	fields, err := r.deadLetter(c.id, why(outcome, cause), p.keyOf(r), p.o.Now())
	if err != nil {
		p.unsettled(c, err)
		return
	}
	if p.entomb(ctx, c, fields) {
		p.killed(ctx, c.id, r, outcome, cause)
	}
}

// discard makes a dead letter of a body that nobody can read, as it is.
func (p *Pipeline) discard(ctx context.Context, c claim, cause error) {
	fields := []any{
		"id", c.id, "topic", "", "hub", "", "account", "", "data", c.body,
		"reason", clip(ReasonUnreadable+": "+cause.Error(), keptError), "attempts", "[]", "time", p.o.Now().UTC().Format(time.RFC3339Nano),
	}
	if p.entomb(ctx, c, fields) {
		p.o.Observer.DeadLettered(p.o.Name, ReasonUnreadable)
		p.o.Log.Error("a parked delivery cannot be read and became a dead letter", "id", c.id, "error", cause)
		p.died(ctx, c.id, ReasonUnreadable, &record{Notifications: []parked{{}}}, cause)
	}
}

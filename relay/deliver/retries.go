package deliver

import (
	"context"
	"log/slog"
	"math/rand/v2"
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
	claimMargin = 10 * time.Second
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
	p.onPark = func(wait time.Duration) { r.hint(d, wait) }
	p.slots.ready = func() { r.hint(d, 0) }
	p.gate.ready = func() { r.hint(d, 0) }
	p.breaker.changed = func(wait time.Duration) { r.hint(d, wait) }
	r.mu.Lock()
	r.sinks[p.Name()] = d
	r.mu.Unlock()
	r.poke()
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
		r.sweep(ctx, func(p *Pipeline, c claim) { running.Go(func() { p.retry(work, c) }) })
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

// sweep looks at every sink whose time has come.
func (r *Retries) sweep(ctx context.Context, start func(*Pipeline, claim)) {
	now := time.Now()
	var sinks []*due
	var looks []*look
	r.mu.Lock()
	for _, d := range r.sinks {
		if !d.next.After(now) {
			sinks, looks = append(sinks, d), append(looks, d.ask(now))
		}
	}
	r.mu.Unlock()
	for len(looks) > 0 {
		n := min(len(looks), sweepMost)
		func() {
			ctx, cancel := context.WithTimeout(ctx, lookTime)
			defer cancel()
			r.o.Store.look(ctx, looks[:n])
		}()
		for i, l := range looks[:n] {
			r.answer(ctx, sinks[i], l, start)
		}
		sinks, looks = sinks[n:], looks[n:]
	}
}

// ask takes the slots that claimed deliveries will need. The caller holds the lock of r.
func (d *due) ask(now time.Time) *look {
	p := d.p
	l := &look{sink: p.Name(), lease: p.o.Timeout + abandonAfter + claimMargin, state: !now.Before(d.idle), asked: p.asking()}
	if off, known := p.isDisabled(); known && !off && d.hinted && p.order.leads() {
		most, wait := p.breaker.room(p.o.Concurrency)
		if most > 0 {
			most, wait = p.gate.room(most)
			l.gated = most == 0
		}
		if l.claims = most > 0; l.claims {
			l.most = p.slots.take(most)
		} else {
			l.held, l.again = true, wait
			p.slots.forgo()
		}
	} else {
		p.slots.forgo()
	}
	if !l.claims && !l.gated {
		p.gate.forgo()
	}
	// Hints that come in meanwhile are kept: they can only be sooner.
	d.next, d.hinted = now.Add(idleLook+rand.N(idleLook/5)).Truncate(lookGrid).Add(lookGrid), false
	if l.state {
		d.idle = d.next
	}
	return l
}

func (r *Retries) answer(ctx context.Context, d *due, l *look, start func(*Pipeline, claim)) {
	p := d.p
	p.slots.release(l.most - len(l.claimed))
	if l.err != nil {
		if ctx.Err() == nil {
			r.o.Log.Warn("cannot look for due deliveries; trying again soon", "sink", l.sink, "error", l.err)
			r.hint(d, errorLook)
		}
		return
	}
	p.heardParked(l.parked)
	if l.state {
		p.failing.heard(l.failing)
		if err := p.apply(ctx, l.stored, l.asked); err != nil {
			p.o.Log.Warn("cannot follow the sink's state; trying again soon", "error", err)
		}
	}
	for _, id := range l.lost {
		p.o.Observer.Lost(l.sink)
		p.o.Log.Error("a parked delivery has lost its body in Redis and was removed", "id", id)
	}
	if len(l.groups) > 0 {
		if err := r.o.Store.seal(ctx, l.sink, l.groups); err != nil && ctx.Err() == nil {
			r.o.Log.Warn("cannot seal what was gathered; trying again soon", "sink", l.sink, "error", err)
			l.next = errorLook
		}
	}
	p.gate.used(len(l.claimed))
	for _, c := range l.claimed {
		start(p, c)
	}
	off, known := p.isDisabled()
	if l.next != 0 {
		p.gate.forgo()
	}
	if off || !known || l.next < 0 || !p.order.leads() {
		return
	}
	switch {
	case l.next > 0:
		r.hint(d, l.next)
		return
	case l.held && l.again > 0:
		r.hint(d, l.again)
		return
	case l.gated || l.claims && p.gate.short():
		p.gate.want() // more is due than may begin
		return
	case l.held:
		return
	}
	if !l.claims || l.most > len(l.claimed) {
		r.hint(d, 0)
		return
	}
	p.slots.want() // more is due than there were slots
}

// retry makes the next attempt of a claimed delivery and settles it. It holds a slot already.
func (p *Pipeline) retry(ctx context.Context, c claim) {
	r, err := decodeRecord(c.body)
	if p.order != nil && err == nil {
		p.retryInOrder(ctx, c, r)
		return
	}
	if err == nil && p.gatherParked(ctx, c, r) {
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
	d := r.delivery(c.id)
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

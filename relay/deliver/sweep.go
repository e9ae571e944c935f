package deliver

import (
	"context"
	"math/rand/v2"
	"time"
)

// sweep looks at every sink whose time has come.
func (r *Retries) sweep(ctx context.Context, start func(*due, claim)) {
	now := time.Now()
	var sinks []*due
	var looks []*look
	r.mu.Lock()
	for _, d := range r.sinks {
		if !d.next.After(now) {
			d.busy.Add(1)
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
			sinks[i].busy.Done()
		}
		sinks, looks = sinks[n:], looks[n:]
	}
}

// ask takes the slots that claimed deliveries will need. The caller holds the lock of r.
func (d *due) ask(now time.Time) *look {
	p := d.p
	l := &look{sink: p.Name(), lease: p.lease(), state: !now.Before(d.idle), asked: p.asking()}
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

// lease is how long a claim lasts: longer than an attempt.
func (p *Pipeline) lease() time.Duration { return p.o.Timeout + abandonAfter + claimMargin }

func (r *Retries) answer(ctx context.Context, d *due, l *look, start func(*due, claim)) {
	p := d.p
	if l.err != nil {
		l.claimed = nil // they come again when the claims have run out
	}
	p.slots.release(l.most - len(l.claimed))
	if l.err != nil {
		if ctx.Err() == nil {
			r.o.Log.Warn("cannot look for due deliveries; trying again soon", "sink", l.sink, "error", l.err)
			r.lookAgain(d, l)
		}
		return
	}
	p.heardParked(l.parked)
	if l.state {
		p.failing.heard(l.failing)
		if err := p.apply(ctx, l.stored, l.asked); err != nil {
			p.o.Log.Warn("cannot follow the sink's state; trying again soon", "error", err)
			r.lookAgain(d, l)
		}
	}
	for _, id := range l.lost {
		p.o.Observer.Lost(l.sink)
		p.o.Log.Error("a parked delivery has lost its body in Redis and was removed", "id", id)
	}
	if off, _ := p.isDisabled(); !off && len(l.groups) > 0 { // else it was paused since it was asked for
		if err := r.o.Store.seal(ctx, l.sink, l.groups); err != nil && ctx.Err() == nil {
			r.o.Log.Warn("cannot seal what was gathered; trying again soon", "sink", l.sink, "error", err)
			l.next = errorLook
		}
	}
	p.gate.used(len(l.claimed))
	for _, c := range l.claimed {
		start(d, c)
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

// lookAgain asks soon for what l did not find out, above all for the state, without which nothing is claimed.
func (r *Retries) lookAgain(d *due, l *look) {
	if l.state {
		r.mu.Lock()
		d.idle = time.Time{}
		r.mu.Unlock()
	}
	r.hint(d, errorLook)
}

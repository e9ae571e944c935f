package deliver

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Try makes one attempt with a notification that is stored nowhere, as a digest of one where the sink has digests, and
// says what came of it. It takes no slot, counts in no figure and changes no state, and works while the sink is paused or
// disabled.
func (p *Pipeline) Try(ctx context.Context, n relay.Notification) Attempt {
	var status atomic.Int64 // it may come after the attempt was given up
	ctx = relay.WithAnswer(ctx, func(s int) { status.Store(int64(s)) })
	start := p.o.Now()
	err := p.attempts.make(ctx, p.trial(n, start))
	a := newAttempt(start, p.o.Now().Sub(start), err)
	if err == nil {
		a.Status = int(status.Load())
	}
	return a
}

// trial is the delivery of n as the sink would get it. An id of its own tells a digest from what it holds.
func (p *Pipeline) trial(n relay.Notification, now time.Time) relay.Delivery {
	d := relay.Delivery{ID: n.ID, Attempt: 1, Notifications: []relay.Notification{n}}
	if p.batches() {
		d.ID, d.Batch = newID(now), true
		return d
	}
	if p.o.Digest.Wait <= 0 || p.order != nil {
		return d
	}
	g := p.gathered(n, p.o.Digest.Wait)
	came := g.came.UTC()
	d.ID = newID(now)
	d.Digest = &relay.Digest{Count: 1, First: came, Last: came, Topics: map[string]int{n.Topic: 1}}
	if len(g.by) > 0 {
		d.Digest.By = g.by
	}
	return d
}

// Halted is until when this node leaves a sink's destination alone; the zero value says that it does not.
type Halted struct {
	// Down is when the next probe of a destination that is down may begin. It may lie in the past.
	Down time.Time
	// Rest is the end of a rest that the destination asked for.
	Rest time.Time
}

// Halted tells whether the destination is left alone.
func (p *Pipeline) Halted() (h Halted) {
	if wait := p.gate.rests(); wait > 0 {
		h.Rest = p.o.Now().Add(wait)
	}
	h.Down = p.breaker.next()
	return h
}

// Hurry lets the next probe of a destination that is down begin at once, for somebody who knows more than the breaker. A
// rest that the destination asked for goes on.
func (p *Pipeline) Hurry() { p.breaker.hurry() }

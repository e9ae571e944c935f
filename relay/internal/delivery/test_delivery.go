package delivery

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// SendTest makes one attempt with a notification that is stored nowhere, as a digest of one where the sink has digests, and
// says what came of it. It takes no slot, counts in no figure and changes no state, and works while the sink is paused or
// disabled.
func (p *Pipeline) SendTest(ctx context.Context, n relay.Notification) store.Attempt {
	var status atomic.Int64 // it may come after the attempt was given up
	ctx = relay.WithStatusCallback(ctx, func(s int) { status.Store(int64(s)) })
	start := p.opts.Now()
	err := p.attempts.runAttempt(ctx, p.testDelivery(n, start))
	a := store.NewAttempt(start, p.opts.Now().Sub(start), err)
	if err == nil {
		a.Status = int(status.Load())
	}
	return a
}

// testDelivery is the delivery of n as the sink would get it. An id of its own tells a digest from what it holds.
func (p *Pipeline) testDelivery(n relay.Notification, now time.Time) relay.Delivery {
	d := relay.Delivery{ID: n.ID, Attempt: 1, Notifications: []relay.Notification{n}}
	if p.usesBatches() {
		d.ID, d.Batch = store.NewDeliveryID(now), true
		return d
	}
	if p.opts.Digest.Wait <= 0 || p.order != nil {
		return d
	}
	g := p.newDigestEntry(n, p.opts.Digest.Wait)
	came := g.ArrivedAt.UTC()
	d.ID = store.NewDeliveryID(now)
	d.Digest = &relay.Digest{Count: 1, First: came, Last: came, Topics: map[string]int{n.Topic: 1}}
	if len(g.Shared) > 0 {
		d.Digest.Shared = g.Shared
	}
	return d
}

// DestinationHold is until when this node leaves a sink's destination alone; the zero value says that it does not.
type DestinationHold struct {
	// ProbeAt is when the next probe of a destination that is down may begin. It may lie in the past.
	ProbeAt time.Time
	// ThrottledUntil is the end of a rest that the destination asked for.
	ThrottledUntil time.Time
}

// DestinationHold tells whether the destination is left alone.
func (p *Pipeline) DestinationHold() (h DestinationHold) {
	if wait := p.rateLimiter.throttleRemaining(); wait > 0 {
		h.ThrottledUntil = p.opts.Now().Add(wait)
	}
	h.ProbeAt = p.breaker.nextProbeAt()
	return h
}

// ProbeNow lets the next probe of a destination that is down begin at once, for somebody who knows more than the breaker. A
// rest that the destination asked for goes on.
func (p *Pipeline) ProbeNow() { p.breaker.probeNow() }

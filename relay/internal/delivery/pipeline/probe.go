package pipeline

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// SendTest makes one attempt with a notification that is not stored. A sink with digests gets it as a digest. The
// attempt needs no permit, changes no statistics and no state, and works while the sink is paused or disabled.
func (p *Pipeline) SendTest(ctx context.Context, n relay.Notification) store.Attempt {
	start := p.opts.Now()
	status, err := p.runner.Run(ctx, p.opts.newTestDelivery(n, start))
	a := store.NewAttempt(start, p.opts.Now().Sub(start), err)
	if err == nil {
		a.Status = status
	}
	return a
}

// newTestDelivery returns the delivery of n as the sink would get it.
func (o *Options) newTestDelivery(n relay.Notification, now time.Time) relay.Delivery {
	d := relay.Delivery{ID: n.ID, Attempt: 1, Notifications: []relay.Notification{n}}
	switch {
	case o.usesBatches():
		d.ID, d.Batch = store.BatchID(d.Notifications), true
	case o.Digest.Wait > 0 && !o.isOrdered():
		e := o.newDigestEntry(n, o.Digest.Wait)
		arrived := e.ArrivedAt.UTC()
		d.ID = store.NewDeliveryID(now)
		d.Digest = &relay.Digest{Count: 1, First: arrived, Last: arrived, Topics: map[string]int{n.Topic: 1}}
		if len(e.Shared) > 0 {
			d.Digest.Shared = e.Shared
		}
	}
	return d
}

// DestinationHold describes why this node does not attempt deliveries of a sink. The zero value means that it does.
type DestinationHold struct {
	// ProbeAt is the earliest time of the next probe of a failing destination. It may be in the past.
	ProbeAt time.Time
	// ThrottledUntil is the end of a pause that the destination asked for.
	ThrottledUntil time.Time
	// FailingAccounts are the sorted accounts for which the destination fails although it works for others. Their deliveries
	// are postponed.
	FailingAccounts []string
}

// DestinationHold returns why this node does not attempt deliveries.
func (p *Pipeline) DestinationHold() (h DestinationHold) {
	if wait := p.admission.Cooldown(); wait > 0 {
		h.ThrottledUntil = p.opts.Now().Add(wait)
	}
	h.ProbeAt, h.FailingAccounts = p.admission.ProbeAt(), p.admission.FailingAccounts()
	return h
}

// IsBacklogFull reports whether new deliveries wait because the scheduled ones have reached Backlog or BacklogBytes.
func (p *Pipeline) IsBacklogFull() bool { return p.admission.IsFull() }

// EndStoredCooldown ends the pause that the destination asked for, in Redis. The nodes end it when they notice that the sink was
// resumed.
func (p *Pipeline) EndStoredCooldown(ctx context.Context) error {
	return p.admission.EndStoredCooldown(ctx)
}

// resumeAttempts ends the pause on this node. Each node also makes digests due earlier, because it may have opened some that wait
// for the end of the pause.
func (p *Pipeline) resumeAttempts(ctx context.Context) error {
	if service, ok := p.opts.Sink.(relay.Service); ok {
		service.Resume()
	}
	p.admission.Resume()
	_, err := p.opts.Store.Digests.SealWithin(ctx, p.opts.Name, p.opts.digestWait())
	return err
}

// ProbeNow allows the next probe of a failing destination to start at once. A pause that the destination asked for
// stays.
func (p *Pipeline) ProbeNow() { p.admission.ProbeNow() }

package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// digestRetryDelay is the delay after due digests could not be sealed.
const digestRetryDelay = time.Second

// pollState describes the last Poll for Apply.
type pollState struct {
	request      store.PollRequest
	reservation  admission.Reservation
	stateVersion int
}

// Poll implements [retry.Sink]. It reserves capacity for as many retries as could start now.
func (p *Pipeline) Poll(due, withState bool) store.PollRequest {
	wanted := 0
	if due && p.state.isActive() && p.IsLeader() {
		wanted = p.opts.Concurrency
	}
	r := p.admission.Reserve(wanted)
	q := store.PollRequest{
		Sink: p.opts.Name, MaxClaims: r.Len(), Lease: p.opts.claimDuration(), WithState: withState,
		WithBytes:    p.opts.maxScheduledBytes() > 0 && p.opts.Now().Sub(p.measuredAt) >= measureDelay,
		CooldownName: p.admission.CooldownName(),
		ReleaseOrder: p.opts.usesBatches() || p.opts.usesDigests(), // otherwise each batch or digest would contain one delivery
	}
	if q.WithBytes {
		p.measuredAt = p.opts.Now()
	}
	p.polling = pollState{request: q, reservation: r, stateVersion: p.state.readVersion()}
	return q
}

// Apply implements [retry.Sink]. If more deliveries are due than were claimed, the admission wakes the scheduler when
// another retry may start.
func (p *Pipeline) Apply(ctx context.Context, r store.PollResult) error {
	o, polling := &p.opts, p.polling
	if r.Err != nil {
		polling.reservation.Close(0, false)
		return r.Err
	}
	p.claims.depth.set(r.Depth, 0)
	if polling.request.WithBytes {
		p.claims.depth.setBytes(r.Bytes + r.Depth*o.scheduledOverhead())
	} else if o.maxScheduledBytes() > 0 && p.admission.IsFull() {
		o.Wake(measureDelay) // this poll came too early to measure, and has replaced a later one that was requested
	}
	var err error
	if polling.request.WithState {
		p.failures.noteStored(r.IsFailing)
		// Before the state, because the reads are not atomic: a cooldown that was read before a resume must end with it.
		if r.Cooldown > 0 && !p.state.isStale(polling.stateVersion) {
			p.admission.FollowCooldown(r.Cooldown)
		}
		err = p.state.applyStored(ctx, r.State, polling.stateVersion)
	}
	for _, id := range r.LostIDs {
		o.Observer.RetryLost(o.Name)
		o.Log.Error("scheduled delivery has lost its record in Redis and was removed", "delivery_id", id)
	}
	next := r.NextDue
	// Also with each later state: a node that has not reloaded yet may open digests with a longer wait.
	if !p.digestsShortened || polling.request.WithState && o.Digest.Wait > 0 {
		shortened, sealErr := o.Store.Digests.SealWithin(ctx, o.Name, o.digestWait())
		if p.digestsShortened = sealErr == nil; sealErr != nil {
			err, next = errors.Join(err, sealErr), digestRetryDelay
		} else if shortened > 0 {
			o.Wake(o.digestWait())
		}
	}
	// The sink may have been paused since the poll.
	if off, _ := p.state.Off(); !off && len(r.DueDigests) > 0 {
		if sealErr := o.Store.Digests.Seal(ctx, o.Name, r.DueDigests); sealErr != nil {
			err, next = errors.Join(err, sealErr), digestRetryDelay
		}
	}
	if !p.state.isActive() || !p.IsLeader() {
		polling.reservation.Close(len(r.Claims), false)
		return err
	}
	polling.reservation.Close(len(r.Claims), next == 0)
	if next > 0 {
		o.Wake(next)
	}
	return err
}

// OnChange implements [retry.Sink].
func (p *Pipeline) OnChange() {
	if p.orders != nil {
		p.orders.refreshSoon()
	}
}

// IsLeader reports whether this node may attempt deliveries. Only one node may if the sink is ordered.
func (p *Pipeline) IsLeader() bool { return p.orders == nil || p.orders.isLeader() }

package delivery

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// dueQuery is a poll of one sink.
type dueQuery struct {
	store.PollRequest
	wantsClaims  bool          // slots were requested, even if none was free
	stateVersion int           // as Pipeline.stateEpoch returned it before the poll
	blocked      bool          // no attempt may start now
	rateLimited  bool          // because of the rate limit
	retryIn      time.Duration // time until one may start, or 0 if that will be signaled
}

// pollDue looks at every sink whose time has come.
func (r *RetryScheduler) pollDue(ctx context.Context, start func(*sinkSchedule, store.Claim)) {
	now := time.Now()
	var sinks []*sinkSchedule
	var looks []*dueQuery
	r.mu.Lock()
	for _, d := range r.sinks {
		if !d.nextCheck.After(now) {
			d.active.Add(1)
			sinks, looks = append(sinks, d), append(looks, d.newDueQuery(now))
		}
	}
	r.mu.Unlock()
	for len(looks) > 0 {
		n := min(len(looks), maxSinksPerPoll)
		requests := make([]store.PollRequest, n)
		for i, l := range looks[:n] {
			requests[i] = l.PollRequest
		}
		results := func() []store.PollResult {
			ctx, cancel := context.WithTimeout(ctx, pollTimeout)
			defer cancel()
			return r.o.Store.Retries.Poll(ctx, requests)
		}()
		for i, l := range looks[:n] {
			r.handleResult(ctx, sinks[i], l, results[i], start)
			sinks[i].active.Done()
		}
		sinks, looks = sinks[n:], looks[n:]
	}
}

// newDueQuery takes the slots that claimed deliveries will need. The caller holds the lock of r.
func (d *sinkSchedule) newDueQuery(now time.Time) *dueQuery {
	p := d.pipeline
	l := &dueQuery{
		PollRequest:  store.PollRequest{Sink: p.Name(), Lease: p.claimDuration(), WithState: !now.Before(d.nextStateCheck)},
		stateVersion: p.stateEpoch(),
	}
	if off, known := p.isDisabled(); known && !off && d.hasDueTime && p.order.isLeader() {
		most, wait := p.breaker.available(p.opts.Concurrency)
		if most > 0 {
			most, wait = p.rateLimiter.available(most)
			l.rateLimited = most == 0
		}
		if l.wantsClaims = most > 0; l.wantsClaims {
			l.MaxClaims = p.concurrency.tryAcquire(most)
		} else {
			l.blocked, l.retryIn = true, wait
			p.concurrency.releaseReserved()
		}
	} else {
		p.concurrency.releaseReserved()
	}
	if !l.wantsClaims && !l.rateLimited {
		p.rateLimiter.releaseRetryTokens()
	}
	// Hints that come in meanwhile are kept: they can only be sooner.
	d.nextCheck, d.hasDueTime = now.Add(idleCheckInterval+rand.N(idleCheckInterval/5)).Truncate(checkGranularity).Add(checkGranularity), false
	if l.WithState {
		d.nextStateCheck = d.nextCheck
	}
	return l
}

// claimDuration is how long a claim lasts: longer than an attempt.
func (p *Pipeline) claimDuration() time.Duration { return p.opts.Timeout + abandonGrace + claimMargin }

func (r *RetryScheduler) handleResult(
	ctx context.Context, d *sinkSchedule, l *dueQuery, res store.PollResult, start func(*sinkSchedule, store.Claim),
) {
	p := d.pipeline
	if res.Err != nil {
		res.Claims = nil // they come again when the claims have run out
	}
	p.concurrency.release(l.MaxClaims - len(res.Claims))
	if res.Err != nil {
		if ctx.Err() == nil {
			r.o.Log.Warn("cannot look for due deliveries; trying again soon", "sink", l.Sink, "error", res.Err)
			r.checkSoon(d, l)
		}
		return
	}
	p.updateRetryCount(res.Depth)
	if l.WithState {
		p.failing.update(res.IsFailing)
		if err := p.applyState(ctx, res.State, l.stateVersion); err != nil {
			p.opts.Log.Warn("cannot follow the sink's state; trying again soon", "error", err)
			r.checkSoon(d, l)
		}
	}
	for _, id := range res.LostIDs {
		p.opts.Observer.RetryLost(l.Sink)
		p.opts.Log.Error("a parked delivery has lost its body in Redis and was removed", "id", id)
	}
	if off, _ := p.isDisabled(); !off && len(res.DueDigests) > 0 { // else it was paused since it was asked for
		if err := r.o.Store.Digests.Seal(ctx, l.Sink, res.DueDigests); err != nil && ctx.Err() == nil {
			r.o.Log.Warn("cannot seal what was gathered; trying again soon", "sink", l.Sink, "error", err)
			res.NextDue = errorRetryInterval
		}
	}
	p.rateLimiter.consumeRetryTokens(len(res.Claims))
	for _, c := range res.Claims {
		start(d, c)
	}
	off, known := p.isDisabled()
	if res.NextDue != 0 {
		p.rateLimiter.releaseRetryTokens()
	}
	if off || !known || res.NextDue < 0 || !p.order.isLeader() {
		return
	}
	switch {
	case res.NextDue > 0:
		r.scheduleCheck(d, res.NextDue)
		return
	case l.blocked && l.retryIn > 0:
		r.scheduleCheck(d, l.retryIn)
		return
	case l.rateLimited || l.wantsClaims && p.rateLimiter.lacksRetryTokens():
		p.rateLimiter.requestTokens() // more is due than may begin
		return
	case l.blocked:
		return
	}
	if !l.wantsClaims || l.MaxClaims > len(res.Claims) {
		r.scheduleCheck(d, 0)
		return
	}
	p.concurrency.notifyWhenFree() // more is due than there were slots
}

// checkSoon asks soon for what l did not find out, above all for the state, without which nothing is claimed.
func (r *RetryScheduler) checkSoon(d *sinkSchedule, l *dueQuery) {
	if l.WithState {
		r.mu.Lock()
		d.nextStateCheck = time.Time{}
		r.mu.Unlock()
	}
	r.scheduleCheck(d, errorRetryInterval)
}

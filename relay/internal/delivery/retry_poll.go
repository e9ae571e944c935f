package delivery

import (
	"context"
	"math/rand/v2"
	"time"
)

// pollDue looks at every sink whose time has come.
func (r *RetryScheduler) pollDue(ctx context.Context, start func(*sinkSchedule, claim)) {
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
		func() {
			ctx, cancel := context.WithTimeout(ctx, pollTimeout)
			defer cancel()
			r.o.Store.queryDue(ctx, looks[:n])
		}()
		for i, l := range looks[:n] {
			r.handleResult(ctx, sinks[i], l, start)
			sinks[i].active.Done()
		}
		sinks, looks = sinks[n:], looks[n:]
	}
}

// newDueQuery takes the slots that claimed deliveries will need. The caller holds the lock of r.
func (d *sinkSchedule) newDueQuery(now time.Time) *dueQuery {
	p := d.pipeline
	l := &dueQuery{sink: p.Name(), lease: p.claimDuration(), wantsState: !now.Before(d.nextStateCheck), stateVersion: p.stateEpoch()}
	if off, known := p.isDisabled(); known && !off && d.hasDueTime && p.order.isLeader() {
		most, wait := p.breaker.available(p.opts.Concurrency)
		if most > 0 {
			most, wait = p.rateLimiter.available(most)
			l.rateLimited = most == 0
		}
		if l.wantsClaims = most > 0; l.wantsClaims {
			l.maxClaims = p.concurrency.tryAcquire(most)
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
	if l.wantsState {
		d.nextStateCheck = d.nextCheck
	}
	return l
}

// claimDuration is how long a claim lasts: longer than an attempt.
func (p *Pipeline) claimDuration() time.Duration { return p.opts.Timeout + abandonGrace + claimMargin }

func (r *RetryScheduler) handleResult(ctx context.Context, d *sinkSchedule, l *dueQuery, start func(*sinkSchedule, claim)) {
	p := d.pipeline
	if l.err != nil {
		l.claimed = nil // they come again when the claims have run out
	}
	p.concurrency.release(l.maxClaims - len(l.claimed))
	if l.err != nil {
		if ctx.Err() == nil {
			r.o.Log.Warn("cannot look for due deliveries; trying again soon", "sink", l.sink, "error", l.err)
			r.checkSoon(d, l)
		}
		return
	}
	p.updateRetryCount(l.scheduled)
	if l.wantsState {
		p.failing.update(l.failing)
		if err := p.applyState(ctx, l.sinkState, l.stateVersion); err != nil {
			p.opts.Log.Warn("cannot follow the sink's state; trying again soon", "error", err)
			r.checkSoon(d, l)
		}
	}
	for _, id := range l.lostIDs {
		p.opts.Observer.RetryLost(l.sink)
		p.opts.Log.Error("a parked delivery has lost its body in Redis and was removed", "id", id)
	}
	if off, _ := p.isDisabled(); !off && len(l.dueDigests) > 0 { // else it was paused since it was asked for
		if err := r.o.Store.sealDigests(ctx, l.sink, l.dueDigests); err != nil && ctx.Err() == nil {
			r.o.Log.Warn("cannot seal what was gathered; trying again soon", "sink", l.sink, "error", err)
			l.nextDueIn = errorRetryInterval
		}
	}
	p.rateLimiter.consumeRetryTokens(len(l.claimed))
	for _, c := range l.claimed {
		start(d, c)
	}
	off, known := p.isDisabled()
	if l.nextDueIn != 0 {
		p.rateLimiter.releaseRetryTokens()
	}
	if off || !known || l.nextDueIn < 0 || !p.order.isLeader() {
		return
	}
	switch {
	case l.nextDueIn > 0:
		r.scheduleCheck(d, l.nextDueIn)
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
	if !l.wantsClaims || l.maxClaims > len(l.claimed) {
		r.scheduleCheck(d, 0)
		return
	}
	p.concurrency.notifyWhenFree() // more is due than there were slots
}

// checkSoon asks soon for what l did not find out, above all for the state, without which nothing is claimed.
func (r *RetryScheduler) checkSoon(d *sinkSchedule, l *dueQuery) {
	if l.wantsState {
		r.mu.Lock()
		d.nextStateCheck = time.Time{}
		r.mu.Unlock()
	}
	r.scheduleCheck(d, errorRetryInterval)
}

package admission

import (
	"context"
	"time"
)

// Permit is the right to start one attempt. Its zero value is empty. With a token only, it is partial. It must not be
// used concurrently.
type Permit struct {
	// Account is the account of the delivery. It is set before the attempt starts, and before Acquire if it is known by then.
	Account Account
	// CanPostpone is set if Acquire may return [ErrPostponed].
	CanPostpone bool

	a                 *Admission
	hasToken, hasSlot bool
	isEntered         bool
	kind              attemptKind
	entered           Account // the account when the attempt was allowed
}

// IsComplete reports whether the attempt has a slot and a token.
func (p *Permit) IsComplete() bool { return p.hasSlot }

// HasToken reports whether the rate allows the attempt.
func (p *Permit) HasToken() bool { return p.hasToken }

// Enter reports whether the attempt of a complete permit may start now. It checks the state, the breaker and the
// cooldown again, because they may have changed since the capacity was reserved.
func (p *Permit) Enter() bool {
	if p.isEntered {
		return true
	}
	if off, _ := p.a.state.Off(); !off && p.a.bucket.cooldown.remaining() == 0 {
		p.entered = p.Account
		p.kind, p.isEntered = p.a.breaker.tryEnter(p.Account)
	}
	return p.isEntered
}

// Done ends the permit after an attempt with the result err. It informs the breaker and the cooldown, and frees the
// slot. counts is false if the attempt was aborted.
func (p *Permit) Done(ctx context.Context, counts bool, err error) {
	p.a.bucket.observeResponse(ctx, counts, err)
	p.a.breaker.recordAttempt(p.entered, p.kind, counts, err)
	p.a.slots.releaseSlots(1)
	*p = Permit{}
}

// Cancel ends the permit without an attempt. It does nothing if the permit is empty.
func (p *Permit) Cancel() {
	if p.isEntered {
		p.a.breaker.recordAttempt(p.entered, p.kind, false, nil)
	}
	if p.hasSlot {
		p.a.slots.releaseSlots(1)
	}
	if p.hasToken {
		p.a.bucket.releaseTokens(1)
	}
	*p = Permit{Account: p.Account, CanPostpone: p.CanPostpone, a: p.a}
}

// Reservation is capacity for retries that are about to be claimed.
type Reservation struct {
	a           *Admission
	n           int
	isRequested bool
	isBlocked   bool          // no retry may start now
	needsToken  bool          // because of the rate
	retryIn     time.Duration // time until one may start, or 0 if Wake is called then
}

// Reserve reserves capacity for up to n retries without waiting. It also ends the last reservation that Close has left
// to wake for.
func (a *Admission) Reserve(n int) Reservation {
	r := Reservation{a: a, isRequested: n > 0}
	available := 0
	if r.isRequested {
		if available, r.retryIn = a.breaker.maxRetries(n); available > 0 {
			available, r.retryIn = a.bucket.maxAttempts(available)
			r.needsToken = available == 0
		}
		r.isBlocked = available == 0
	}
	if available > 0 {
		r.n = a.slots.reserveSlots(available)
		return r
	}
	a.slots.releaseReserved()
	if !r.needsToken {
		a.bucket.releaseReserved()
	}
	return r
}

// Len returns the number of retries that may be claimed.
func (r Reservation) Len() int { return r.n }

// Close returns what was not used by the claims. Each claim has a permit, see [Admission.ReservedPermit]. If more is
// set, another retry is due, and Wake is called when it may start.
func (r Reservation) Close(used int, more bool) {
	a := r.a
	a.slots.releaseSlots(r.n - used)
	a.bucket.takeReserved(used)
	switch {
	case !more:
		a.bucket.releaseReserved()
	case !r.isRequested:
		a.wake(0)
	case r.isBlocked && r.retryIn > 0:
		a.wake(r.retryIn)
	case r.needsToken || !r.isBlocked && a.bucket.lacksReserved():
		a.bucket.wakeWhenAvailable()
	case r.isBlocked: // the breaker calls wake
	case used < r.n:
		a.wake(0)
	default:
		a.slots.wakeWhenFree()
	}
}

// ReservedPermit returns the permit of a claim that a closed reservation has counted as used.
func (a *Admission) ReservedPermit() Permit { return Permit{a: a, hasToken: true, hasSlot: true} }

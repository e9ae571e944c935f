package delivery

import (
	"context"
	"sync"
	"time"
)

// admission decides when an attempt may start: it waits for space in the retry queue, the circuit breaker, the rate limit
// and the concurrency limit.
type admission struct {
	opts     *Options
	state    *sinkState
	stopping context.Context
	slots    *concurrencyLimiter
	rate     *rateLimiter
	breaker  *breaker
	backlog  *backlogLimit
}

func newAdmission(o *Options, state *sinkState, stopping context.Context) *admission {
	a := &admission{
		opts: o, state: state, stopping: stopping, slots: newConcurrencyLimiter(o.Concurrency),
		rate: newRateLimiter(&o.Store.Rates, o), breaker: newBreaker(o.Now), backlog: newBacklogLimit(o.Backlog),
	}
	a.slots.onSlots = func() { o.Wake(0) }
	a.rate.onTokens = func() { o.Wake(0) }
	a.breaker.onAvailable = o.Wake
	a.breaker.onStateChange = o.onBreakerChange
	a.rate.onThrottle = func(isThrottled bool) { o.onThrottleChange(isThrottled, a.rate.throttleRemaining()) }
	o.Observer.CircuitChanged(o.Name, false)
	o.Observer.Throttled(o.Name, false)
	return a
}

// Acquire completes a permit. It returns [ErrDisabled] when the sink is disabled.
func (a *admission) Acquire(ctx context.Context, p *permit) error {
	for p.a = a; ; {
		off, changed := a.state.Off()
		if off {
			p.Cancel()
			return ErrDisabled
		}
		if err := a.waitOpen(ctx, changed); err != nil {
			p.Cancel()
			return err
		}
		if !p.hasToken {
			if ok, err := a.waitForRate(ctx, changed); err != nil {
				return err
			} else if !ok {
				continue
			}
			p.hasToken = true
		}
		if err := a.slots.acquire(ctx); err != nil {
			p.Cancel()
			return err
		}
		p.hasSlot = true
		if off, _ := a.state.Off(); !off && !a.backlog.isFull() && p.Enter() {
			return nil
		}
		p.Cancel()
	}
}

// WaitOpen waits for space in the retry queue and for the circuit breaker.
func (a *admission) WaitOpen(ctx context.Context) error {
	off, changed := a.state.Off()
	if off {
		return ErrDisabled
	}
	if err := a.waitOpen(ctx, changed); err != nil {
		return err
	}
	if off, _ = a.state.Off(); off {
		return ErrDisabled
	}
	return ctx.Err()
}

// waitOpen also returns when changed is closed.
func (a *admission) waitOpen(ctx context.Context, changed <-chan struct{}) error {
	if n, _ := a.breaker.available(1); n > 0 && !a.backlog.isFull() {
		return nil
	}
	ctx, cancel := a.untilStop(ctx)
	defer cancel()
	if err := a.backlog.wait(ctx, changed); err != nil {
		return err
	}
	return a.breaker.wait(ctx, changed)
}

// waitForRate returns false when changed is closed first.
func (a *admission) waitForRate(ctx context.Context, changed <-chan struct{}) (bool, error) {
	if !a.rate.hasRate() && a.rate.throttleRemaining() == 0 {
		return true, nil
	}
	ctx, cancel := a.untilStop(ctx)
	defer cancel()
	return a.rate.wait(ctx, changed)
}

// TryRate takes a token if the rate allows one now. It returns the minimum time until it may do so.
func (a *admission) TryRate(ctx context.Context, p *permit) (wait time.Duration, err error) {
	if n, wait := a.breaker.available(1); n == 0 {
		return wait, nil
	}
	_, changed := a.state.Off()
	ctx, cancel := a.untilStop(ctx)
	defer cancel()
	p.a = a
	p.hasToken, wait, err = a.rate.tryAcquire(ctx, changed)
	return wait, err
}

func (a *admission) untilStop(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(a.stopping, cancel)
	return ctx, func() { stop(); cancel() }
}

func (a *admission) isFull() bool { return a.backlog.isFull() }

// SetDepth sets the number of scheduled deliveries.
func (a *admission) SetDepth(depth int64) { a.backlog.set(depth) }

func (a *admission) chargeExtraRequests(ctx context.Context) { a.rate.chargeExtraRequests(ctx) }

// Close must be called after the last attempt has started.
func (a *admission) Close() { a.rate.close() }

// reservation is capacity for n retries.
type reservation struct {
	a           *admission
	n           int
	isBlocked   bool          // no retry may start now
	rateLimited bool          // because of the rate limit
	retryIn     time.Duration // time until one may start, or 0 if that will be signaled
	isEmpty     bool          // nothing was requested
}

// Reserve reserves capacity for up to n retries without waiting.
func (a *admission) Reserve(n int) reservation {
	r := reservation{a: a, isEmpty: n == 0}
	available := 0
	if n > 0 {
		if available, r.retryIn = a.breaker.available(n); available > 0 {
			available, r.retryIn = a.rate.available(available)
			r.rateLimited = available == 0
		}
		r.isBlocked = available == 0
	}
	if available > 0 {
		r.n = a.slots.tryAcquire(available)
		return r
	}
	a.slots.releaseReserved()
	if !r.rateLimited {
		a.rate.releaseRetryTokens()
	}
	return r
}

// Close returns what was not used. If more is set, another retry is due, and the scheduler is woken when it may start.
func (r reservation) Close(used int, more bool) {
	a := r.a
	a.slots.release(r.n - used)
	a.rate.consumeRetryTokens(used)
	switch {
	case !more:
		a.rate.releaseRetryTokens()
	case r.isEmpty:
		a.opts.Wake(0)
	case r.isBlocked && r.retryIn > 0:
		a.opts.Wake(r.retryIn)
	case r.rateLimited || !r.isBlocked && a.rate.lacksRetryTokens():
		a.rate.requestTokens()
	case r.isBlocked: // the breaker wakes the scheduler
	case used < r.n:
		a.opts.Wake(0)
	default:
		a.slots.notifyWhenFree()
	}
}

// reservedPermit returns a permit of a reservation, for one of the retries that were used.
func (a *admission) reservedPermit() permit { return permit{a: a, hasToken: true, hasSlot: true} }

// permit is the right to start one attempt. Its zero value is empty. It must not be used concurrently.
type permit struct {
	a                 *admission
	hasToken, hasSlot bool
	isEntered         bool
	isProbe           bool
}

func (p *permit) isComplete() bool { return p.hasSlot }

// Enter reports whether the attempt may start now. It checks the breaker and the cooldown again.
func (p *permit) Enter() bool {
	if !p.isEntered && p.a.rate.throttleRemaining() == 0 {
		p.isProbe, p.isEntered = p.a.breaker.allow()
	}
	return p.isEntered
}

// Done ends the permit after an attempt. counts is false if the attempt was aborted and says nothing about the
// destination.
func (p *permit) Done(ctx context.Context, counts bool, err error) {
	p.a.rate.observeResponse(ctx, counts, err)
	p.a.breaker.record(p.isProbe, counts, err)
	p.a.slots.release(1)
	*p = permit{}
}

// Cancel ends a permit without an attempt. It may be called at any time.
func (p *permit) Cancel() {
	if p.isEntered {
		p.a.breaker.record(p.isProbe, false, nil)
	}
	if p.hasSlot {
		p.a.slots.release(1)
	}
	if p.hasToken {
		p.a.rate.returnTokens(1)
	}
	*p = permit{a: p.a}
}

// backlogLimit stops fresh deliveries while too many are scheduled. It may be used concurrently.
type backlogLimit struct {
	limit int64 // 0 means no limit

	mu    sync.Mutex
	depth int64
	freed chan struct{} // closed and replaced when the depth falls below the limit
}

func newBacklogLimit(limit int64) *backlogLimit {
	return &backlogLimit{limit: limit, freed: make(chan struct{})}
}

func (b *backlogLimit) set(depth int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wasFull := b.isFullLocked()
	b.depth = depth
	if wasFull && !b.isFullLocked() {
		close(b.freed)
		b.freed = make(chan struct{})
	}
}

func (b *backlogLimit) isFull() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.isFullLocked()
}

func (b *backlogLimit) isFullLocked() bool { return b.limit > 0 && b.depth >= b.limit }

// wait returns when there may be space, when stop is closed, or with the error of ctx.
func (b *backlogLimit) wait(ctx context.Context, stop <-chan struct{}) error {
	b.mu.Lock()
	isFull, freed := b.isFullLocked(), b.freed
	b.mu.Unlock()
	if !isFull {
		return nil
	}
	select {
	case <-freed:
	case <-stop:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

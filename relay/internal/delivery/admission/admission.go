// Package admission decides when an attempt of a sink may start.
//
// Fresh deliveries and retries share the circuit breaker, the rate limit, the cooldown that a destination has asked
// for, and the concurrency limit. Fresh deliveries wait in order. Retries are claimed only for capacity that is
// reserved, so a claim never waits. If both want capacity, they get it in turns.
//
// The package does not know deliveries.
package admission

import (
	"context"
	"errors"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// ErrDisabled reports that no attempt may start, because the sink is disabled or paused.
var ErrDisabled = errors.New("the sink is disabled or paused and keeps its backlog")

// ErrPostponed reports that a delivery should be scheduled without an attempt, because the destination fails for its account, and
// works for others, or the queue has deliveries of others that can find out.
var ErrPostponed = errors.New("the destination fails for the account of this delivery")

// State is the state of a sink.
type State interface {
	// Off reports whether the sink takes no deliveries. The channel is closed when that may have changed.
	Off() (off bool, changed <-chan struct{})
}

// Options configure an [Admission]. They do not change.
type Options struct {
	// Concurrency is the maximum number of concurrent attempts.
	Concurrency int
	// Rate limits the attempts of all nodes together. The zero value means no limit. Burst is the number of attempts
	// that may start at once after a pause. The default is the rate of one second, at least one.
	Rate  relay.Rate
	Burst int
	// RateKey returns the name of the rate, which several sinks may share.
	RateKey func() string
	// Backlog is the number of scheduled deliveries at which fresh ones must wait. 0 means no limit.
	Backlog int64
	// BacklogBytes is the memory of scheduled deliveries at which fresh ones must wait. 0 means no limit.
	BacklogBytes int64
	// ProbeDelay is the time between the failure of a destination and the first probe. The default is one second.
	ProbeDelay time.Duration
	// SearchRetries lets retries be claimed while the destination fails, to find those whose account may probe.
	SearchRetries bool
	Store         RateStore
	State         State
	// Wake is called when a retry may start after a time. It must not block.
	Wake func(after time.Duration)
	// OnOutage is called when the circuit breaker opens or closes, and OnCooldown when a cooldown starts or ends.
	OnOutage   func(isOpen bool, cause error)
	OnCooldown func(isActive bool)
	Now        func() time.Time
}

// Admission decides when the attempts of one sink may start. It may be used concurrently.
type Admission struct {
	state    State
	wake     func(after time.Duration)
	stopping context.Context
	slots    *semaphore
	bucket   *tokenBucket
	breaker  *breaker
	backlog  *backlog
}

// New returns an Admission. The end of stopping ends all waits.
func New(stopping context.Context, o Options) *Admission {
	wakeNow := func() { o.Wake(0) }
	a := &Admission{
		state: o.State, wake: o.Wake, stopping: stopping,
		slots: newSemaphore(o.Concurrency, wakeNow), breaker: newBreaker(o.Now),
		backlog: newBacklog(o.Backlog, o.BacklogBytes),
		bucket: &tokenBucket{
			limit: newRateLimit(o.Rate, o.Burst), store: o.Store, name: o.RateKey, now: o.Now, wake: wakeNow,
			cooldown: newCooldown(o.Now, o.OnCooldown), changed: make(chan struct{}, 1),
		},
	}
	a.breaker.wake, a.breaker.onChange = o.Wake, o.OnOutage
	if o.SearchRetries {
		a.breaker.maxSearched = maxSearchedRetries
	}
	if o.ProbeDelay > 0 {
		a.breaker.initialOpenTime = o.ProbeDelay
	}
	return a
}

// Acquire completes a permit. It waits for the backlog, the circuit breaker, the rate and a slot, and then checks all
// of them again. It returns [ErrDisabled] when the sink is disabled, and perhaps [ErrPostponed]. After an error, the permit is
// empty.
func (a *Admission) Acquire(ctx context.Context, p *Permit) error {
	for p.a = a; ; {
		off, changed := a.state.Off()
		if off {
			p.Cancel()
			return ErrDisabled
		}
		if err := a.waitOpen(ctx, p, changed); err != nil {
			p.Cancel()
			return err
		}
		if !p.hasToken {
			var err error
			if p.hasToken, err = a.acquireToken(ctx, changed); err != nil {
				return err
			} else if !p.hasToken {
				continue // the state has changed
			}
		}
		var err error
		if p.hasSlot, err = a.slots.acquireSlot(ctx, a.stopping, changed); err != nil {
			p.Cancel()
			return err
		} else if !p.hasSlot {
			continue // the state has changed
		}
		if off, _ := a.state.Off(); !off && !a.backlog.isFull() && p.Enter() {
			return nil
		}
		p.Cancel()
	}
}

// WaitOpen waits for the backlog and the circuit breaker only. It uses only the exported fields of the permit.
func (a *Admission) WaitOpen(ctx context.Context, p *Permit) error {
	off, changed := a.state.Off()
	if off {
		return ErrDisabled
	}
	if err := a.waitOpen(ctx, p, changed); err != nil {
		return err
	}
	if off, _ = a.state.Off(); off {
		return ErrDisabled
	}
	return ctx.Err()
}

// waitOpen also returns when changed is closed. It creates no context unless it waits.
func (a *Admission) waitOpen(ctx context.Context, p *Permit, changed <-chan struct{}) error {
	if a.breaker.isReady(p.Account) && !a.backlog.isFull() {
		return nil
	}
	ctx, cancel := a.untilStop(ctx)
	defer cancel()
	if err := a.backlog.wait(ctx, changed); err != nil {
		return err
	}
	return a.breaker.wait(ctx, p.Account, p.CanPostpone, changed)
}

// acquireToken returns false when changed is closed first.
func (a *Admission) acquireToken(ctx context.Context, changed <-chan struct{}) (bool, error) {
	if !a.bucket.hasRate() && a.bucket.cooldown.remaining() == 0 {
		return true, nil
	}
	ctx, cancel := a.untilStop(ctx)
	defer cancel()
	return a.bucket.acquireToken(ctx, changed)
}

// TryRate takes a token if the breaker and the rate allow an attempt now, and no attempt is waiting. Otherwise it
// returns the minimum time until they do.
func (a *Admission) TryRate(ctx context.Context, p *Permit) (wait time.Duration, err error) {
	if n, wait := a.breaker.maxAttempts(1); n == 0 {
		return wait, nil
	}
	_, changed := a.state.Off()
	ctx, cancel := a.untilStop(ctx)
	defer cancel()
	p.a = a
	p.hasToken, wait, err = a.bucket.tryAcquire(ctx, changed)
	return wait, err
}

func (a *Admission) untilStop(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(a.stopping, cancel)
	return ctx, func() { stop(); cancel() }
}

// SetConcurrency changes the maximum number of concurrent attempts, between 0 and [Options.Concurrency]. Attempts that have started
// continue.
func (a *Admission) SetConcurrency(n int) { a.slots.setSize(n) }

// SetDepth sets the number of scheduled deliveries, and adds the size of one that was scheduled since the last SetBytes. It reports
// whether Backlog or BacklogBytes was reached.
func (a *Admission) SetDepth(scheduled, addedBytes int64) (becameFull bool) {
	return a.backlog.setDepth(scheduled, addedBytes)
}

// SetBytes sets the memory of the scheduled deliveries.
func (a *Admission) SetBytes(bytes int64) { a.backlog.setBytes(bytes) }

// RemoveScheduled subtracts a scheduled delivery, until the next SetDepth.
func (a *Admission) RemoveScheduled() { a.backlog.removeOne() }

// Depth returns the number of scheduled deliveries.
func (a *Admission) Depth() int64 {
	depth, _ := a.backlog.size()
	return depth
}

// Bytes returns the memory of the scheduled deliveries.
func (a *Admission) Bytes() int64 {
	_, bytes := a.backlog.size()
	return bytes
}

// IsFull reports whether the scheduled deliveries have reached Backlog or BacklogBytes.
func (a *Admission) IsFull() bool { return a.backlog.isFull() }

// Charge counts requests that an attempt has made in addition to its own, so later attempts wait longer.
func (a *Admission) Charge(ctx context.Context, requests int) { a.bucket.chargeRequests(ctx, requests) }

// CooldownName returns the name of the rate whose cooldown to poll.
func (a *Admission) CooldownName() string { return a.bucket.name() }

// FollowCooldown starts a cooldown that another node has stored.
func (a *Admission) FollowCooldown(remaining time.Duration) { a.bucket.startCooldown(remaining) }

// EndStoredCooldown ends the cooldown in Redis. Each node still has to call [Admission.Resume].
func (a *Admission) EndStoredCooldown(ctx context.Context) error {
	return a.bucket.store.EndCooldown(ctx, a.bucket.name(), a.bucket.limit)
}

// Resume ends the cooldown on this node and allows the next probe of a failing destination at once.
func (a *Admission) Resume() {
	a.bucket.endCooldown()
	a.breaker.probeNow()
}

// Cooldown returns the remaining time of the pause that the destination has asked for, or 0.
func (a *Admission) Cooldown() time.Duration { return a.bucket.cooldown.remaining() }

// ProbeAt returns the earliest time of the next probe, which may be in the past. It is zero while the breaker is
// closed.
func (a *Admission) ProbeAt() time.Time { return a.breaker.nextProbeAt() }

// FailedAccounts returns the accounts whose last attempt failed, while the destination fails. ok is false if there are too
// many, or if their deliveries may be postponed already.
func (a *Admission) FailedAccounts() (accounts []string, ok bool) { return a.breaker.listFailed() }

// AllowPostponing lets Acquire and WaitOpen return [ErrPostponed] for a limited number of deliveries of failing accounts while
// the destination fails.
func (a *Admission) AllowPostponing() { a.breaker.allowPostponing() }

// TakeRecovered reports whether the destination has recovered for the sink or for an account since the last call.
func (a *Admission) TakeRecovered() bool { return a.breaker.takeRecovered() }

// FailingAccounts returns the sorted accounts for which the destination fails although it works for others.
func (a *Admission) FailingAccounts() []string { return a.breaker.failingAccounts() }

// WorksFor reports whether the circuit breakers of the sink and of an account are closed.
func (a *Admission) WorksFor(account Account) bool { return a.breaker.worksFor(account) }

// IsFailing reports whether the destination fails for an account and not for others, so a retry that may not start should be
// postponed.
func (a *Admission) IsFailing(account Account) bool { return a.breaker.isFailing(account) }

// ProbeNow allows the next probe of a failing destination at once.
func (a *Admission) ProbeNow() { a.breaker.probeNow() }

// Waiting returns the number of fresh deliveries that wait for the rate or a slot.
func (a *Admission) Waiting() int {
	a.bucket.mu.Lock()
	n := len(a.bucket.queue.tickets)
	a.bucket.mu.Unlock()
	a.slots.mu.Lock()
	defer a.slots.mu.Unlock()
	return n + len(a.slots.queue.tickets)
}

// Close returns reserved tokens to Redis. Call it after stopping has ended.
func (a *Admission) Close() { a.bucket.close() }

// waitFor waits for a time, until changed is closed, or until stop is closed, which it reports. It returns the error of
// ctx if that ends first.
func waitFor(ctx context.Context, wait time.Duration, changed, stop <-chan struct{}) (stopped bool, err error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-stop:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
	return false, nil
}

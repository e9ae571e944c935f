package admission

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// FailureThreshold is the number of consecutive failures that open the circuit breaker.
	FailureThreshold = 10

	minOpenTime    = time.Second
	maxOpenTime    = time.Minute
	openTimeGrowth = 2

	// suspectFailures is the number of consecutive failures of one account after which only this account may be the cause.
	suspectFailures = 3
	// maxPostponed is the maximum number of deliveries of a suspect account that are postponed before the next check whether
	// the queue has others.
	maxPostponed = 1000
)

// breaker is the circuit breaker of a sink on this node. While the destination fails, deliveries stay in their queue,
// in order, and use no slot, no attempt and no memory of Redis. Scheduling them all would cost a write each and lose
// their order. Single probes find out when the destination responds again.
//
// If the last failures were all of one account, its events may be the cause. Then a delivery of another account may probe at
// once. If the queue has such deliveries, the caller also lets the suspect account be postponed, so that they come first.
type breaker struct {
	now func() time.Time
	// wake is called without the lock when an attempt may start after a time.
	wake func(after time.Duration)
	// onChange is called without the lock when the breaker opens or closes.
	onChange        func(isOpen bool, cause error)
	initialOpenTime time.Duration

	mu        sync.Mutex
	failures  int // consecutive
	isOpen    bool
	isProbing bool
	openTime  time.Duration
	probeAt   time.Time     // earliest time of the next probe
	changed   chan struct{} // closed and replaced at every change

	failedAccount   Account // of the last failure
	accountFailures int     // consecutive failures of failedAccount
	postponable     int     // number of deliveries of failedAccount that may be postponed
}

func newBreaker(now func() time.Time) *breaker {
	return &breaker{
		now: now, initialOpenTime: minOpenTime, changed: make(chan struct{}),
		wake: func(time.Duration) {}, onChange: func(bool, error) {},
	}
}

// tryEnter reports whether an attempt of an account may start, and whether it is a probe. If it may, recordAttempt must
// follow.
func (b *breaker) tryEnter(account Account) (isProbe, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isOpen {
		return false, true
	}
	if b.isProbing || b.waitTimeLocked(account) > 0 {
		return false, false
	}
	b.isProbing = true
	return true, true
}

// waitTimeLocked returns the time until a probe of the account may start.
func (b *breaker) waitTimeLocked(account Account) time.Duration {
	if b.hasSuspectLocked() && account.isKnown && account != b.failedAccount {
		return 0
	}
	return b.probeAt.Sub(b.now())
}

func (b *breaker) hasSuspectLocked() bool {
	return b.isOpen && b.failedAccount.isKnown && b.accountFailures >= suspectFailures
}

// findSuspect returns the only account of the last failures. ok is false if there is none, or if its deliveries may be
// postponed already.
func (b *breaker) findSuspect() (account Account, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failedAccount, b.hasSuspectLocked() && b.postponable == 0
}

// allowPostponing lets up to maxPostponed deliveries of the account be postponed if it is still suspect.
func (b *breaker) allowPostponing(account Account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hasSuspectLocked() && account == b.failedAccount {
		b.postponable = maxPostponed
		b.signalLocked()
	}
}

// maxAttempts returns how many of n attempts may start. If none may, it returns the time until one may, or 0 if wake is
// called then.
func (b *breaker) maxAttempts(n int) (int, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.isOpen:
		return n, 0
	case b.isProbing:
		return 0, 0
	}
	if wait := b.probeAt.Sub(b.now()); wait > 0 {
		return 0, wait
	}
	return min(n, 1), 0
}

// wait returns when tryEnter may succeed, when stop is closed, or with the error of ctx. It returns [ErrPostponed] for a
// delivery of a suspect account if the caller can postpone it.
func (b *breaker) wait(ctx context.Context, account Account, canPostpone bool, stop <-chan struct{}) error {
	for {
		b.mu.Lock()
		isOpen, isProbing, wait, changed := b.isOpen, b.isProbing, b.waitTimeLocked(account), b.changed
		if !isOpen || !isProbing && wait <= 0 {
			b.mu.Unlock()
			return nil
		}
		if canPostpone && b.postponable > 0 && account == b.failedAccount {
			b.postponable--
			b.mu.Unlock()
			return ErrPostponed
		}
		b.mu.Unlock()
		if isProbing {
			wait = maxOpenTime // changed is closed when the probe ends
		}
		if stopped, err := waitFor(ctx, wait, changed, stop); stopped || err != nil {
			return err
		}
	}
}

// recordAttempt processes the end of an attempt of an account. counts is false for an attempt that was aborted.
func (b *breaker) recordAttempt(account Account, isProbe, counts bool, err error) {
	failed := counts && indicatesOutage(err)
	b.mu.Lock()
	wasOpen, hadSuspect := b.isOpen, b.hasSuspectLocked()
	if isProbe {
		b.isProbing = false
	}
	if counts {
		b.countFailureLocked(account, failed)
	}
	switch {
	case !counts:
	case !failed:
		b.failures, b.isOpen, b.openTime = 0, false, 0
	case isProbe && b.isOpen:
		b.openTime = min(b.openTime*openTimeGrowth, maxOpenTime)
		b.probeAt = b.now().Add(b.openTime)
	default:
		b.failures++
		if !b.isOpen && b.failures >= FailureThreshold {
			b.isOpen, b.openTime = true, b.initialOpenTime
			b.probeAt = b.now().Add(b.openTime)
		}
	}
	isOpen, wait := b.isOpen, time.Duration(0)
	hasChanged := isProbe || wasOpen != isOpen || hadSuspect != b.hasSuspectLocked()
	if hasChanged {
		b.signalLocked()
	}
	if hasChanged && isOpen {
		wait = max(0, b.probeAt.Sub(b.now()))
	}
	b.mu.Unlock()
	if wasOpen != isOpen {
		b.onChange(isOpen, err)
	}
	if hasChanged {
		b.wake(wait)
	}
}

func (b *breaker) countFailureLocked(account Account, failed bool) {
	switch {
	case !failed:
		b.accountFailures, b.postponable = 0, 0
	case account == b.failedAccount:
		b.accountFailures++
	default:
		b.failedAccount, b.accountFailures, b.postponable = account, 1, 0
	}
}

func (b *breaker) signalLocked() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// nextProbeAt returns the earliest time of the next probe, or zero while the breaker is closed.
func (b *breaker) nextProbeAt() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isOpen {
		return time.Time{}
	}
	return b.probeAt
}

// probeNow allows the next probe at once, and resets the open time.
func (b *breaker) probeNow() {
	b.mu.Lock()
	if !b.isOpen {
		b.mu.Unlock()
		return
	}
	b.openTime, b.probeAt = b.initialOpenTime, b.now()
	b.signalLocked()
	isProbing := b.isProbing
	b.mu.Unlock()
	if !isProbing {
		b.wake(0)
	}
}

// indicatesOutage reports whether an error says that the destination as a whole is unreachable, slow, broken or
// overloaded. Any other response shows that it works.
func indicatesOutage(err error) bool {
	if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry {
		return false
	}
	var response *relay.ResponseError
	if !errors.As(err, &response) {
		return true
	}
	status := response.Status
	return status == 0 || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
}

package admission

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// FailureThreshold is the number of consecutive failures that open the circuit breaker of a sink or of an account.
	FailureThreshold = 10

	minOpenTime    = time.Second
	maxOpenTime    = time.Minute
	openTimeGrowth = 2

	// probesUntilForgotten is the number of failed probes after which all accounts but the last one may probe again. The
	// destination may have recovered for them.
	probesUntilForgotten = 3
	// maxSearchedRetries is the number of retries that may be claimed to find accounts that may probe, each time the breaker opens
	// or accounts may probe again.
	maxSearchedRetries = 1000
	// maxPostponed is the maximum number of deliveries that are postponed before the next check whether the queue has
	// other accounts.
	maxPostponed = 1000
)

// breaker is the circuit breaker of a sink on this node. While the destination fails, deliveries stay in their queue,
// in order, and use no slot, no attempt and no memory of Redis. Scheduling them all would cost a write each and lose
// their order. Single probes find out when the destination responds again.
//
// Perhaps the destination fails only for the events of some accounts. Others must not wait for them:
//   - While the breaker is open, one delivery of each account that has not failed may probe at once. If the queue has such
//     deliveries, the caller lets the others be postponed, and these come first.
//   - An account that fails while others succeed has its own circuit breaker. Its deliveries are postponed, and its failures
//     do not count for the sink.
type breaker struct {
	now func() time.Time
	// wake is called without the lock when an attempt may start after a time.
	wake func(after time.Duration)
	// onChange is called without the lock when the breaker opens or closes.
	onChange        func(isOpen bool, cause error)
	initialOpenTime time.Duration
	maxSearched     int         // 0 or maxSearchedRetries
	hasRecovered    atomic.Bool // a circuit breaker has closed since the last takeRecovered

	mu          sync.Mutex
	failures    int // consecutive
	isOpen      bool
	isProbing   bool // early probes do not count
	openTime    time.Duration
	probeAt     time.Time     // earliest time of the next probe
	changed     chan struct{} // closed and replaced at every change
	accounts    failedAccounts
	earlyProbes map[Account]struct{} // the accounts whose early probe is running
	probeCount  int                  // failed probes, without early ones, since accounts were last allowed to probe again
	searchable  int                  // number of retries that may be claimed to find accounts that may probe
	postponable int                  // number of deliveries of failing accounts that may be postponed while the breaker is open
}

func newBreaker(now func() time.Time) *breaker {
	return &breaker{
		now: now, initialOpenTime: minOpenTime, changed: make(chan struct{}),
		accounts: make(failedAccounts), earlyProbes: make(map[Account]struct{}),
		wake: func(time.Duration) {}, onChange: func(bool, error) {},
	}
}

// attemptKind is the effect that an attempt may have on the circuit breakers.
type attemptKind uint8

const (
	ordinaryAttempt attemptKind = iota
	sinkProbe
	earlyProbe // of an account that has not failed; it does not delay the next probe
	accountProbe
)

// tryEnter reports whether an attempt of an account may start, and its kind. If it may, recordAttempt must follow.
func (b *breaker) tryEnter(account Account) (kind attemptKind, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waitTimeLocked(account) > 0 {
		return ordinaryAttempt, false
	}
	switch f := b.accounts.find(account); {
	case b.isOpen && !b.isProbing && !b.now().Before(b.probeAt):
		b.isProbing = true
		return sinkProbe, true
	case b.isOpen:
		b.earlyProbes[account] = struct{}{}
		return earlyProbe, true
	case f.isOpen():
		f.isProbing = true
		return accountProbe, true
	}
	return ordinaryAttempt, true
}

// waitTimeLocked returns the time until an attempt of an account may start. It is maxOpenTime during a probe, whose end
// closes changed.
func (b *breaker) waitTimeLocked(account Account) time.Duration {
	f := b.accounts.find(account)
	switch {
	case b.isOpen && b.mayProbeEarlyLocked(account):
		return 0
	case b.isOpen && b.isProbing, !b.isOpen && f.isOpen() && f.isProbing:
		return maxOpenTime
	case b.isOpen:
		return b.probeAt.Sub(b.now())
	case f.isOpen():
		return f.probeAt.Sub(b.now())
	}
	return 0
}

// mayProbeEarlyLocked reports whether an account has not failed and is not probing. Such accounts probe at the same time,
// because a probe may take as long as its timeout.
func (b *breaker) mayProbeEarlyLocked(account Account) bool {
	_, isProbing := b.earlyProbes[account]
	return account.isKnown && !isProbing && b.accounts.find(account) == nil &&
		len(b.accounts)+len(b.earlyProbes) < maxFailedAccounts
}

// isReady reports whether an attempt of an account may start.
func (b *breaker) isReady(account Account) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waitTimeLocked(account) <= 0
}

// isFailing reports whether only deliveries of this account must wait.
func (b *breaker) isFailing(account Account) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.isOpen && b.accounts.find(account).isOpen()
}

// worksFor reports whether the circuit breakers of the sink and of an account are closed.
func (b *breaker) worksFor(account Account) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.isOpen && !b.accounts.find(account).isOpen()
}

// failingAccounts returns the sorted accounts whose deliveries must wait while others continue.
func (b *breaker) failingAccounts() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOpen {
		return nil
	}
	b.accounts.forgetOld(b.now())
	return b.accounts.failing()
}

// maxAttempts returns how many of n attempts may start. If none may, it returns the time until one may, or 0 if wake is
// called then.
func (b *breaker) maxAttempts(n int) (int, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.maxAttemptsLocked(n)
}

func (b *breaker) maxAttemptsLocked(n int) (int, time.Duration) {
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

// maxRetries is maxAttempts for retries, whose account is not known yet. While the breaker is open, more may be claimed to find
// accounts that may probe early. Retries of others are not admitted.
func (b *breaker) maxRetries(n int) (int, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOpen && !b.isProbing && b.searchable > 0 && len(b.accounts) < maxFailedAccounts {
		n = min(n, b.searchable)
		b.searchable -= n
		return n, 0
	}
	return b.maxAttemptsLocked(n)
}

// wait returns when tryEnter may succeed, when stop is closed, or with the error of ctx. It returns [ErrPostponed] for a
// delivery of a failing account that the caller can postpone.
func (b *breaker) wait(ctx context.Context, account Account, canPostpone bool, stop <-chan struct{}) error {
	for {
		b.mu.Lock()
		wait, changed := b.waitTimeLocked(account), b.changed
		if wait > 0 && canPostpone && b.postponeLocked(account) {
			b.mu.Unlock()
			return ErrPostponed
		}
		b.mu.Unlock()
		if wait <= 0 {
			return nil
		}
		if stopped, err := waitFor(ctx, wait, changed, stop); stopped || err != nil {
			return err
		}
	}
}

// postponeLocked reports whether a delivery of the account is postponed now. None is during a probe, which may end the outage.
// Early probes do not count, because they may be slow and many.
func (b *breaker) postponeLocked(account Account) bool {
	f := b.accounts.find(account)
	if b.isOpen && !b.isProbing && f != nil && b.postponable > 0 {
		b.postponable--
		return true
	}
	return !b.isOpen && f.isOpen()
}

// listFailed returns the accounts whose last attempt failed, while the breaker is open. ok is false if there are too many, or if
// their deliveries may be postponed already.
func (b *breaker) listFailed() (accounts []string, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isOpen || b.postponable > 0 || len(b.accounts) == 0 || len(b.accounts) >= maxFailedAccounts {
		return nil, false
	}
	return b.accounts.ids(), true
}

// allowPostponing lets up to maxPostponed deliveries of failing accounts be postponed while the breaker is open.
func (b *breaker) allowPostponing() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOpen {
		b.postponable = maxPostponed
		b.signalLocked()
	}
}

// recordAttempt processes the end of an attempt of an account. counts is false for an attempt that was aborted.
func (b *breaker) recordAttempt(account Account, kind attemptKind, counts bool, err error) {
	failed := counts && (IndicatesOutage(err) || rejectsSink(err))
	b.mu.Lock()
	wasOpen := b.isOpen
	switch kind {
	case sinkProbe:
		b.isProbing = false
	case earlyProbe:
		delete(b.earlyProbes, account)
	case accountProbe:
		b.accounts.endProbe(account)
	}
	accountChanged := false
	switch {
	case !counts:
	case !failed:
		if wasOpen || b.accounts.find(account).isOpen() {
			b.hasRecovered.Store(true)
		}
		accountChanged = b.accounts.recordSuccess(account, b.now(), b.initialOpenTime)
		b.failures, b.isOpen, b.openTime, b.postponable, b.probeCount, b.searchable = 0, false, 0, 0, 0, 0
	default:
		accountChanged = b.recordFailureLocked(account, kind)
	}
	isOpen, wait := b.isOpen, time.Duration(0)
	hasChanged := kind != ordinaryAttempt || wasOpen != isOpen || accountChanged
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

// recordFailureLocked reports whether waiting deliveries must be woken, because of another account or a breaker that has opened.
func (b *breaker) recordFailureLocked(account Account, kind attemptKind) (accountChanged bool) {
	f, isNew := b.accounts.recordFailure(account, b.now())
	if isNew {
		b.postponable = 0 // the queue must be searched again
	}
	switch {
	case kind == earlyProbe && b.isOpen: // the time of the next probe stays
	case kind == sinkProbe && b.isOpen:
		b.openTime = min(b.openTime*openTimeGrowth, maxOpenTime)
		b.probeAt = b.now().Add(b.openTime)
		b.countProbeLocked(account)
	case !b.isOpen && f.isOpen() && !f.hasExpired(b.now()):
		hasOpened := f.failures == FailureThreshold
		if hasOpened || kind == accountProbe {
			f.delayProbe(b.now(), b.initialOpenTime)
		}
		return hasOpened
	default:
		b.failures++
		if !b.isOpen && b.failures >= FailureThreshold {
			b.isOpen, b.openTime = true, b.initialOpenTime
			b.probeAt = b.now().Add(b.openTime)
			b.accounts.forgetOld(b.now())
			b.accounts.forgetSuccesses()
			b.searchable = b.maxSearched
		}
	}
	return isNew && b.isOpen
}

// countProbeLocked removes the failures of other accounts after several failed probes.
func (b *breaker) countProbeLocked(account Account) {
	if b.probeCount++; b.probeCount < probesUntilForgotten || !account.isKnown {
		return
	}
	b.probeCount, b.postponable, b.searchable = 0, 0, b.maxSearched
	b.accounts.forgetOthers(account)
}

// takeRecovered reports whether the circuit breaker of the sink or of an account has closed since the last call.
func (b *breaker) takeRecovered() bool { return b.hasRecovered.Load() && b.hasRecovered.Swap(false) }

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
	b.accounts.probeNow(b.now(), b.initialOpenTime)
	if !b.isOpen && len(b.accounts) == 0 {
		b.mu.Unlock()
		return
	}
	if b.isOpen {
		b.openTime, b.probeAt = b.initialOpenTime, b.now()
	}
	b.signalLocked()
	isProbing := b.isOpen && b.isProbing
	b.mu.Unlock()
	if !isProbing {
		b.wake(0)
	}
}

// rejectsSink reports whether an error says that the URL or the credentials of the sink are wrong.
func rejectsSink(err error) bool {
	var response *relay.ResponseError
	return errors.As(err, &response) && (response.Status == http.StatusUnauthorized || response.Status/100 == 3)
}

// IndicatesOutage reports whether an error says that the destination as a whole is unreachable, slow, broken or
// overloaded. Any other response shows that it works.
func IndicatesOutage(err error) bool {
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

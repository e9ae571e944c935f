package admission

import (
	"maps"
	"slices"
	"time"
)

const (
	// maxFailedAccounts is the maximum number of accounts that are known to fail. If more do, the destination fails.
	maxFailedAccounts = 100
	// forgetAfter is the time after which a failure of an account, or a success of others, no longer counts.
	forgetAfter = 10 * time.Minute
	// minFailures is the number of failures of an account before a success of others shows that it fails alone.
	minFailures = 3
)

// Account is the account of a delivery, which may be empty. The zero value is unknown or several accounts.
type Account struct {
	id      string
	isKnown bool
}

// NewAccount returns the account with an ID.
func NewAccount(id string) Account { return Account{id: id, isKnown: true} }

// failedAccounts are the accounts whose last attempt failed, by ID.
type failedAccounts map[string]*failedAccount

// failedAccount has the state of an account, and of its circuit breaker.
type failedAccount struct {
	failures int // consecutive
	failedAt time.Time
	// othersSucceededAt is the time of the last success of another account. It is zero if the account had few failures then, or if
	// the sink was down since.
	othersSucceededAt time.Time
	isProbing         bool
	openTime          time.Duration
	probeAt           time.Time
}

// isOpen reports whether the destination fails for this account, but not for others. f may be nil.
func (f *failedAccount) isOpen() bool {
	return f != nil && !f.othersSucceededAt.IsZero() && f.failures >= FailureThreshold
}

// hasExpired reports whether others have not succeeded for a long time, so the destination may fail for them too.
func (f *failedAccount) hasExpired(now time.Time) bool {
	return now.Sub(f.othersSucceededAt) > forgetAfter
}

// delayProbe sets the time of the next probe.
func (f *failedAccount) delayProbe(now time.Time, initial time.Duration) {
	f.openTime = min(max(f.openTime*openTimeGrowth, initial), maxOpenTime)
	f.probeAt = now.Add(f.openTime)
}

// find returns nil for an account that does not fail, or that is unknown.
func (m failedAccounts) find(account Account) *failedAccount {
	if !account.isKnown {
		return nil
	}
	return m[account.id]
}

func (m failedAccounts) ids() []string { return slices.Collect(maps.Keys(m)) }

// failing returns the sorted IDs of the accounts whose circuit breaker is open.
func (m failedAccounts) failing() (ids []string) {
	for id, f := range m {
		if f.isOpen() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// recordFailure returns nil if the account is unknown or too many fail.
func (m failedAccounts) recordFailure(account Account, now time.Time) (f *failedAccount, isNew bool) {
	if !account.isKnown {
		return nil, false
	}
	if f = m[account.id]; f == nil {
		if len(m) >= maxFailedAccounts {
			m.forgetOld(now)
		}
		if len(m) >= maxFailedAccounts {
			return nil, false
		}
		f, isNew = &failedAccount{}, true
		m[account.id] = f
	}
	f.failures++
	f.failedAt = now
	return f, isNew
}

// recordSuccess removes the account and opens the circuit breakers of others that have failed often enough. It reports whether
// a circuit breaker has changed.
func (m failedAccounts) recordSuccess(account Account, now time.Time, initialOpenTime time.Duration) (hasChanged bool) {
	if f := m.find(account); f != nil {
		hasChanged = f.isOpen()
		delete(m, account.id)
	}
	for _, f := range m {
		if f.failures < minFailures {
			continue
		}
		wasOpen := f.isOpen()
		f.othersSucceededAt = now
		if !wasOpen && f.isOpen() {
			f.openTime = 0
			f.delayProbe(now, initialOpenTime)
			hasChanged = true
		}
	}
	return hasChanged
}

func (m failedAccounts) endProbe(account Account) {
	if f := m.find(account); f != nil {
		f.isProbing = false
	}
}

// forgetSuccesses closes the circuit breakers of all accounts, because the destination fails for others too.
func (m failedAccounts) forgetSuccesses() {
	for _, f := range m {
		f.othersSucceededAt = time.Time{}
	}
}

// forgetOld removes accounts that have failed long ago and not since.
func (m failedAccounts) forgetOld(now time.Time) {
	maps.DeleteFunc(m, func(_ string, f *failedAccount) bool { return !f.isProbing && now.Sub(f.failedAt) > forgetAfter })
}

// forgetOthers removes all accounts but one.
func (m failedAccounts) forgetOthers(account Account) {
	maps.DeleteFunc(m, func(id string, _ *failedAccount) bool { return id != account.id })
}

// probeNow allows the next probe of each account at once.
func (m failedAccounts) probeNow(now time.Time, initialOpenTime time.Duration) {
	for _, f := range m {
		f.openTime, f.probeAt = initialOpenTime, now
	}
}

package admission

import (
	"maps"
	"slices"
	"time"
)

const (
	// maxFailingAccounts is the maximum number of accounts that are known to fail. If more do, the destination fails.
	maxFailingAccounts = 100
	// forgetAfter is the time after which the failure of an account makes room for others.
	forgetAfter = 10 * time.Minute
)

// Account is the account of a delivery, which may be empty. The zero value is unknown or several accounts.
type Account struct {
	id      string
	isKnown bool
}

// NewAccount returns the account with an ID.
func NewAccount(id string) Account { return Account{id: id, isKnown: true} }

// failingAccounts are the accounts whose last attempt failed, by ID.
type failingAccounts map[string]*failingAccount

// failingAccount has the state of an account, and of its circuit breaker.
type failingAccount struct {
	failures int // consecutive
	failedAt time.Time
	// othersSucceed is set if an attempt of another account has succeeded since the first failure, and the sink was not down since.
	othersSucceed bool
	isProbing     bool
	openTime      time.Duration
	probeAt       time.Time
}

// isOpen reports whether the destination fails for this account, but not for others. f may be nil.
func (f *failingAccount) isOpen() bool {
	return f != nil && f.othersSucceed && f.failures >= FailureThreshold
}

// delayProbe sets the time of the next probe.
func (f *failingAccount) delayProbe(now time.Time, initial time.Duration) {
	f.openTime = min(max(f.openTime*openTimeGrowth, initial), maxOpenTime)
	f.probeAt = now.Add(f.openTime)
}

// find returns nil for an account that does not fail, or that is unknown.
func (m failingAccounts) find(account Account) *failingAccount {
	if !account.isKnown {
		return nil
	}
	return m[account.id]
}

func (m failingAccounts) ids() []string { return slices.Collect(maps.Keys(m)) }

// open returns the sorted IDs of the accounts whose circuit breaker is open.
func (m failingAccounts) open() (ids []string) {
	for id, f := range m {
		if f.isOpen() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// recordFailure returns nil if the account is unknown or too many fail.
func (m failingAccounts) recordFailure(account Account, now time.Time) (f *failingAccount, isNew bool) {
	if !account.isKnown {
		return nil, false
	}
	if f = m[account.id]; f == nil {
		if len(m) >= maxFailingAccounts {
			maps.DeleteFunc(m, func(_ string, f *failingAccount) bool { return now.Sub(f.failedAt) > forgetAfter })
		}
		if len(m) >= maxFailingAccounts {
			return nil, false
		}
		f, isNew = &failingAccount{}, true
		m[account.id] = f
	}
	f.failures++
	f.failedAt = now
	return f, isNew
}

// recordSuccess removes the account and opens the circuit breakers of others that have failed often enough. It reports whether
// anything has changed.
func (m failingAccounts) recordSuccess(account Account, now time.Time, initialOpenTime time.Duration) (hasChanged bool) {
	if m.find(account) != nil {
		delete(m, account.id)
		hasChanged = true
	}
	for _, f := range m {
		if f.othersSucceed {
			continue
		}
		f.othersSucceed, f.openTime = true, 0
		if f.isOpen() {
			f.delayProbe(now, initialOpenTime)
			hasChanged = true
		}
	}
	return hasChanged
}

func (m failingAccounts) endProbe(account Account) {
	if f := m.find(account); f != nil {
		f.isProbing = false
	}
}

// forgetSuccesses closes the circuit breakers of all accounts, because the destination fails for others too.
func (m failingAccounts) forgetSuccesses() {
	for _, f := range m {
		f.othersSucceed = false
	}
}

// probeNow allows the next probe of each account at once.
func (m failingAccounts) probeNow(now time.Time, initialOpenTime time.Duration) {
	for _, f := range m {
		f.openTime, f.probeAt = initialOpenTime, now
	}
}

package forward

import (
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

const (
	// maxChangedHubs and maxChangedAccounts bound the memory. Beyond them, the credentials for all hubs of the account,
	// or of all accounts, count as changed. A client cannot choose its account, so it cannot invalidate the decisions
	// about others.
	maxChangedHubs     = 1_000
	maxChangedAccounts = 10_000
	// maxChanges is the maximum of all accounts together. Beyond it, the credentials of all accounts count as changed.
	maxChanges = 100_000
)

// credentialChanges remembers when the credentials of hubs changed at the endpoint. It compares the clocks of nodes,
// so they must be synchronized. The zero value is ready.
type credentialChanges struct {
	mu       sync.Mutex
	accounts map[string]*accountChanges
	count    int       // number of hubs of all accounts
	all      time.Time // the credentials of all accounts changed
	latest   time.Time
}

// accountChanges are the changes that notifications of one account reported.
type accountChanges struct {
	hubs map[string]time.Time
	all  time.Time // the credentials for all hubs changed
}

func (c *credentialChanges) addAll(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest, c.all = latestOf(c.latest, at), latestOf(c.all, at)
}

func (c *credentialChanges) add(account, hub string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest = latestOf(c.latest, at)
	a := c.accounts[account]
	if c.count >= maxChanges || a == nil && len(c.accounts) >= maxChangedAccounts {
		c.all, c.accounts, c.count = c.latest, nil, 0
		return
	}
	if a == nil {
		if c.accounts == nil {
			c.accounts = make(map[string]*accountChanges)
		}
		a = &accountChanges{hubs: make(map[string]time.Time)}
		c.accounts[strings.Clone(account)] = a // a part of a string would keep the memory of its event
	}
	if _, isKnown := a.hubs[hub]; !isKnown {
		if len(a.hubs) >= maxChangedHubs {
			a.all = c.latest
			c.count -= len(a.hubs)
			clear(a.hubs)
			return
		}
		hub = strings.Clone(hub)
		c.count++
	}
	a.hubs[hub] = latestOf(a.hubs[hub], at)
}

func latestOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// changedSince reports whether the credential of a grant may have changed after it was verified. A notification counts
// for the grants of its account and hub. Without an account it counts for all grants that are bound to its hub.
func (c *credentialChanges) changedSince(g *auth.Grant) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latest.Before(g.VerifiedAt) {
		return false // the common case
	}
	if !c.all.Before(g.VerifiedAt) || c.accounts[g.Account].changedSince(g, true) {
		return true
	}
	return g.Account != "" && c.accounts[""].changedSince(g, g.Account == auth.Wildcard)
}

// changedSince reports whether one of the hubs of a grant changed. wildcard includes grants that are not bound to a hub.
func (a *accountChanges) changedSince(g *auth.Grant, wildcard bool) bool {
	if a == nil {
		return false
	}
	if !a.all.Before(g.VerifiedAt) {
		return true
	}
	hubs := g.Hubs
	if g.Hub != "" {
		hubs = []string{g.Hub}
	}
	for _, hub := range hubs {
		if hub == auth.Wildcard && wildcard {
			for _, changed := range a.hubs {
				if !changed.Before(g.VerifiedAt) {
					return true
				}
			}
		}
		if changed, ok := a.hubs[hub]; ok && !changed.Before(g.VerifiedAt) {
			return true
		}
	}
	return false
}

package forward

import (
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

const (
	// maxCredentials, maxHubs and maxCacheBytes bound the cache. Beyond maxHubs, the decisions about one credential are removed, so
	// a client cannot remove the decisions about other credentials.
	maxCredentials = 10_000
	maxHubs        = 100
	maxCacheBytes  = 64 << 20
	// ownCredentials and ownBytes are the limits above which the decisions of an owner are removed before others.
	ownCredentials = 8
	ownBytes       = 64 << 10
	// sampleSize is the size of a random sample of credentials. The one that has been idle longest is removed if no owner exceeds
	// its limits.
	sampleSize = 16
	// sweepInterval is the minimum time between two searches for expired decisions.
	sweepInterval = time.Second
	// removalDivisor is the divisor for the number of credentials that are removed at once, because the search takes longer.
	removalDivisor = 100
)

// decisionCache contains the accepted credentials, with a decision for each hub. It may be used concurrently.
type decisionCache struct {
	maxAge time.Duration // after which a decision is useless

	mu      sync.Mutex
	keys    map[apikey.Hash]map[string]*auth.Key // by the hash of the credential, then by hub
	owners  map[string]*ownedDecisions           // by decisionOwner
	bytes   int
	sweepAt time.Time // when the next search for expired decisions may begin
}

// ownedDecisions are the decisions of an owner.
type ownedDecisions struct {
	count map[apikey.Hash]int // of decisions, by credential
	bytes int
}

// usageAndLimit returns the number of credentials or bytes of an owner, and its limit.
func (o *ownedDecisions) usageAndLimit(byCount bool) (amount, limit int) {
	if byCount {
		return len(o.count), ownCredentials
	}
	return o.bytes, ownBytes
}

func newDecisionCache(maxAge time.Duration) *decisionCache {
	return &decisionCache{
		maxAge: maxAge, keys: make(map[apikey.Hash]map[string]*auth.Key), owners: make(map[string]*ownedDecisions),
	}
}

// decisionOwner returns the owner of a decision: its account, or its name if it has no account. [auth.Key.Owner] is the same for all
// credentials without an account, so one of them could displace the others.
func decisionOwner(key *auth.Key) string {
	if key.AccountID == "" {
		return "name " + key.Name
	}
	return "account " + key.AccountID
}

// findKey returns the decision about a credential for a hub, or nil.
func (c *decisionCache) findKey(id apikey.Hash, hub string) *auth.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keys[id][hub]
}

// addKey replaces the decision about a credential for a hub.
func (c *decisionCache) addKey(id apikey.Hash, hub string, key *auth.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(id, hub)
	if len(c.keys[id]) >= maxHubs {
		c.removeCredentialLocked(id)
	}
	size := decisionBytes(hub, key)
	if c.isFullLocked(id, size) {
		c.removeExpiredLocked(key.VerifiedAt)
	}
	for c.isFullLocked(id, size) && len(c.keys) > 0 {
		c.removeSomeLocked(c.keys[id] == nil && len(c.keys) >= maxCredentials)
	}
	if c.keys[id] == nil {
		c.keys[id] = make(map[string]*auth.Key)
	}
	c.keys[id][hub] = key
	name := decisionOwner(key)
	owner := c.owners[name]
	if owner == nil {
		owner = &ownedDecisions{count: make(map[apikey.Hash]int)}
		c.owners[name] = owner
	}
	owner.count[id]++
	owner.bytes += size
	c.bytes += size
}

// decisionBytes returns about the memory of a decision. A client can send any hub.
func decisionBytes(hub string, key *auth.Key) int { return len(hub) + key.MemoryBytes() }

// isFullLocked reports whether there is no room for a decision about a credential.
func (c *decisionCache) isFullLocked(id apikey.Hash, size int) bool {
	return c.keys[id] == nil && len(c.keys) >= maxCredentials || c.bytes+size > maxCacheBytes
}

// removeExpiredLocked removes useless decisions. It does nothing if it was called less than sweepInterval ago.
func (c *decisionCache) removeExpiredLocked(now time.Time) {
	if now.Before(c.sweepAt) {
		return
	}
	c.sweepAt = now.Add(sweepInterval)
	for id, byHub := range c.keys {
		for hub, key := range byHub {
			if !now.Before(key.Expires) || now.Sub(key.VerifiedAt) >= c.maxAge {
				c.removeLocked(id, hub)
			}
		}
	}
}

// removeSomeLocked removes decisions of the owner with the most credentials or bytes if they exceed its limits. Otherwise, it removes
// decisions about credentials that were not used recently.
func (c *decisionCache) removeSomeLocked(byCount bool) {
	var largest *ownedDecisions
	most := 0
	for _, o := range c.owners {
		if amount, _ := o.usageAndLimit(byCount); amount > most {
			largest, most = o, amount
		}
	}
	if _, limit := largest.usageAndLimit(byCount); most <= limit {
		for range len(c.keys)/removalDivisor + 1 {
			c.removeCredentialLocked(c.sampleIdlestLocked())
		}
		return
	}
	for range len(c.keys)/removalDivisor + 1 {
		if amount, limit := largest.usageAndLimit(byCount); amount <= limit {
			return
		}
		for id := range largest.count { // in random order
			c.removeCredentialLocked(id)
			break
		}
	}
}

// sampleIdlestLocked returns the credential of a random sample that has been idle longest.
func (c *decisionCache) sampleIdlestLocked() (idlest apikey.Hash) {
	var usedAt int64
	count := 0
	for id, byHub := range c.keys { // in random order
		var last int64
		for _, key := range byHub {
			last = max(last, key.LastUsed.Load())
		}
		if count == 0 || last < usedAt {
			idlest, usedAt = id, last
		}
		if count++; count == sampleSize {
			break
		}
	}
	return idlest
}

func (c *decisionCache) removeKey(id apikey.Hash, hub string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(id, hub)
}

func (c *decisionCache) removeCredentialLocked(id apikey.Hash) {
	for hub := range c.keys[id] {
		c.removeLocked(id, hub)
	}
}

func (c *decisionCache) removeLocked(id apikey.Hash, hub string) {
	key := c.keys[id][hub]
	if key == nil {
		return
	}
	if delete(c.keys[id], hub); len(c.keys[id]) == 0 {
		delete(c.keys, id)
	}
	name := decisionOwner(key)
	size, owner := decisionBytes(hub, key), c.owners[name]
	c.bytes -= size
	owner.bytes -= size
	if owner.count[id]--; owner.count[id] == 0 {
		delete(owner.count, id)
	}
	if len(owner.count) == 0 {
		delete(c.owners, name)
	}
}

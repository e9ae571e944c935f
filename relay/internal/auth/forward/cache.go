package forward

import (
	"sync"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

const (
	// maxCredentials, maxHubs and maxCacheBytes bound the cache. Beyond maxHubs, the decisions about one credential are removed, so
	// a client cannot remove the decisions about other credentials. Beyond the others, those of the account with the most are.
	maxCredentials = 10_000
	maxHubs        = 100
	maxCacheBytes  = 64 << 20
)

// decisionCache contains the accepted credentials, with a decision for each hub. It may be used concurrently.
type decisionCache struct {
	mu     sync.Mutex
	keys   map[apikey.Hash]map[string]*auth.Key // by the hash of the credential, then by hub
	owners map[string]*ownedDecisions           // by [auth.Key.Owner]
	bytes  int
}

// ownedDecisions are the decisions of an owner.
type ownedDecisions struct {
	count map[apikey.Hash]int // of decisions, by credential
	bytes int
}

func newDecisionCache() *decisionCache {
	return &decisionCache{
		keys: make(map[apikey.Hash]map[string]*auth.Key), owners: make(map[string]*ownedDecisions),
	}
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
	c.makeRoomLocked(id, size)
	if c.keys[id] == nil {
		c.keys[id] = make(map[string]*auth.Key)
	}
	c.keys[id][hub] = key
	owner := c.owners[key.Owner()]
	if owner == nil {
		owner = &ownedDecisions{count: make(map[apikey.Hash]int)}
		c.owners[key.Owner()] = owner
	}
	owner.count[id]++
	owner.bytes += size
	c.bytes += size
}

// decisionBytes returns about the memory of a decision. A client can send any hub.
func decisionBytes(hub string, key *auth.Key) int { return len(hub) + key.MemoryBytes() }

// makeRoomLocked removes decisions of the owner with the most until there is room for a decision about a credential.
func (c *decisionCache) makeRoomLocked(id apikey.Hash, size int) {
	for {
		tooMany := c.keys[id] == nil && len(c.keys) >= maxCredentials
		if !tooMany && c.bytes+size <= maxCacheBytes || len(c.keys) == 0 {
			return
		}
		var largest *ownedDecisions
		for _, o := range c.owners {
			if largest == nil || tooMany && len(o.count) > len(largest.count) || !tooMany && o.bytes > largest.bytes {
				largest = o
			}
		}
		// An eighth at once, because the search takes longer than a removal.
		for remaining := len(largest.count)/8 + 1; remaining > 0; remaining-- {
			for credential := range largest.count { // in random order
				c.removeCredentialLocked(credential)
				break
			}
		}
	}
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
	size, owner := decisionBytes(hub, key), c.owners[key.Owner()]
	c.bytes -= size
	owner.bytes -= size
	if owner.count[id]--; owner.count[id] == 0 {
		delete(owner.count, id)
	}
	if len(owner.count) == 0 {
		delete(c.owners, key.Owner())
	}
}

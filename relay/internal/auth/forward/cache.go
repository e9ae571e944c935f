package forward

import (
	"sync"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

const (
	// maxCredentials, maxHubs and maxCacheBytes bound the cache. Beyond maxHubs, the decisions about one credential are removed, so
	// a client cannot remove the decisions about other credentials. Beyond the others, large decisions are removed first.
	maxCredentials = 10_000
	maxHubs        = 100
	maxCacheBytes  = 64 << 20
	// largeDecision is the size of a decision in bytes that few credentials need, because it lists many hubs.
	largeDecision = 8 << 10
)

// decisionCache contains the accepted credentials, with a decision for each hub. It may be used concurrently.
type decisionCache struct {
	mu    sync.Mutex
	keys  map[apikey.Hash]map[string]*auth.Key // by the hash of the credential, then by hub
	bytes int
}

func newDecisionCache() *decisionCache {
	return &decisionCache{keys: make(map[apikey.Hash]map[string]*auth.Key)}
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
		for other := range c.keys[id] {
			c.removeLocked(id, other)
		}
	}
	size := decisionBytes(hub, key)
	if c.isFullLocked(id, size) {
		c.makeRoomLocked(id, size)
	}
	if c.keys[id] == nil {
		c.keys[id] = make(map[string]*auth.Key)
	}
	c.keys[id][hub] = key
	c.bytes += size
}

// decisionBytes returns about the memory of a decision. A client can send any hub.
func decisionBytes(hub string, key *auth.Key) int { return len(hub) + key.MemoryBytes() }

// isFullLocked reports whether there is no room for a decision about a credential.
func (c *decisionCache) isFullLocked(id apikey.Hash, size int) bool {
	return c.keys[id] == nil && len(c.keys) >= maxCredentials || c.bytes+size > maxCacheBytes
}

// makeRoomLocked removes the large decisions, or all if that is not enough.
func (c *decisionCache) makeRoomLocked(id apikey.Hash, size int) {
	for id, byHub := range c.keys {
		for hub, key := range byHub {
			if decisionBytes(hub, key) > largeDecision {
				c.removeLocked(id, hub)
			}
		}
	}
	if c.isFullLocked(id, size) {
		clear(c.keys)
		c.bytes = 0
	}
}

func (c *decisionCache) removeKey(id apikey.Hash, hub string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(id, hub)
}

func (c *decisionCache) removeLocked(id apikey.Hash, hub string) {
	key := c.keys[id][hub]
	if key == nil {
		return
	}
	c.bytes -= decisionBytes(hub, key)
	if delete(c.keys[id], hub); len(c.keys[id]) == 0 {
		delete(c.keys, id)
	}
}

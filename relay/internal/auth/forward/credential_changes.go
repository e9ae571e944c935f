package forward

import (
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

// maxChangedHubs bounds the memory. Beyond it, the credentials of all hubs count as changed.
const maxChangedHubs = 10_000

// credentialChanges remembers when the credentials of hubs changed at the endpoint. It compares the clocks of nodes,
// so they must be synchronized. The zero value is ready.
type credentialChanges struct {
	mu     sync.Mutex
	byHub  map[string]time.Time
	all    time.Time // all hubs changed
	latest time.Time
}

func (c *credentialChanges) add(hub string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest = now
	if hub == "" || len(c.byHub) >= maxChangedHubs {
		c.all, c.byHub = now, nil
		return
	}
	if c.byHub == nil {
		c.byHub = make(map[string]time.Time)
	}
	c.byHub[hub] = now
}

// changedSince reports whether the credentials of one of the hubs have changed at t or later.
func (c *credentialChanges) changedSince(t time.Time, hubs []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latest.Before(t) {
		return false // the common case
	}
	if !c.all.Before(t) {
		return true
	}
	for _, hub := range hubs {
		if changed, ok := c.byHub[hub]; hub == auth.Wildcard || ok && !changed.Before(t) {
			return true
		}
	}
	return false
}

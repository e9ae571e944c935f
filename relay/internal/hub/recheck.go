package hub

import (
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// KeyStatus is the status of a key for a stream that it has opened. The zero value keeps the stream open.
type KeyStatus struct {
	// Refused is why the key does not allow the stream any longer. The client is closed with 1008.
	Refused *relay.Error
	// ScopeChanged means that the visible notifications have changed. The client is closed with 1008 and reconnects,
	// because the visible notifications of a stream are fixed when it opens.
	ScopeChanged bool
	// Expires is the time at which the client is closed with 1008 because the key expires. Zero means never.
	Expires time.Time
}

// closeReason returns why the stream must end, or an empty string.
func (s KeyStatus) closeReason() string {
	switch {
	case s.expired():
		return "the key has expired"
	case s.Refused != nil:
		return "the key no longer opens this stream"
	case s.ScopeChanged:
		return "the key has changed; connect again"
	default:
		return ""
	}
}

func (s KeyStatus) expired() bool {
	if s.Refused != nil {
		return s.Refused.Code == relay.CodeAuthExpired
	}
	return !s.Expires.IsZero() && !time.Now().Before(s.Expires)
}

// RecheckKeys checks the key of every client (see Subscription.CheckKey), and closes those whose stream must end with
// 1008. Call it after a change of keys. Otherwise the next ping detects the change.
func (h *Hub) RecheckKeys() {
	for _, c := range h.allClients() {
		c.closeIfKeyInvalid()
	}
}

// refreshKeyStatus checks the key, and schedules another check at its expiry.
func (c *client) refreshKeyStatus() KeyStatus {
	if c.checkKey == nil {
		return KeyStatus{}
	}
	c.mu.Lock()
	defer c.mu.Unlock() // the later of two concurrent results counts
	s := c.checkKey()
	switch {
	case c.state != stateLive: // a timer would not be stopped
	case s.Expires.IsZero():
		if c.keyTimer != nil {
			c.keyTimer.Stop()
		}
	case c.keyTimer == nil:
		c.keyTimer = time.AfterFunc(time.Until(s.Expires), func() { c.closeIfKeyInvalid() })
	default:
		c.keyTimer.Reset(time.Until(s.Expires))
	}
	return s
}

// closeIfKeyInvalid closes the client if its key requires it, and reports whether it did.
func (c *client) closeIfKeyInvalid() bool { return c.closeForKey(c.refreshKeyStatus()) }

func (c *client) closeForKey(s KeyStatus) bool {
	reason := s.closeReason()
	if reason == "" {
		return false
	}
	ending := ClosedKeyInvalid
	if s.Refused != nil && s.Refused.Code == relay.CodeAuthInvalid {
		ending = ClosedKeyRemoved
	}
	c.close(closeRequest{code: ClosePolicy, reason: reason, closeReason: ending, dropQueued: true})
	return true
}

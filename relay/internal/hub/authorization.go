package hub

import (
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/hub/frame"
)

// Authorization is how a key stands to a stream that it has opened. The zero value lets the stream go on.
type Authorization struct {
	// Refused is why the key does not open the stream any more; the client is sent away with 1008.
	Refused *relay.Error
	// ScopeChanged says that the key opens the stream to other notifications than before; the client is sent away with 1008, to
	// come back at once: what may be seen of a stream is settled when it is opened.
	ScopeChanged bool
	// Expires is when the client is sent away with 1008 because the key has expired; zero means never.
	Expires time.Time
}

// closeReason says why the stream is over, and nothing where it goes on.
func (s Authorization) closeReason() string {
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

func (s Authorization) expired() bool {
	if s.Refused != nil {
		return s.Refused.Code == relay.CodeAuthExpired
	}
	return !s.Expires.IsZero() && !time.Now().Before(s.Expires)
}

// RecheckKeys asks of every client how its key stands to the stream (see Subscription.Stands), and sends those away with 1008
// whose stream is over. Whoever changes a key calls it then; without that it would be noticed at the next ping.
func (h *Hub) RecheckKeys() {
	for _, c := range h.all() {
		c.closeIfKeyInvalid()
	}
}

// authorize asks the key, and sees to it that it is asked again when it expires.
func (c *connection) authorize() Authorization {
	if c.checkKey == nil {
		return Authorization{}
	}
	c.mu.Lock()
	defer c.mu.Unlock() // so that of two who ask at once the later answer counts
	s := c.checkKey()
	switch {
	case c.state != stateLive: // nobody would stop it
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

// closeIfKeyInvalid sends the client away where its key says so, and reports whether that is so.
func (c *connection) closeIfKeyInvalid() bool { return c.closeForKey(c.authorize()) }

func (c *connection) closeForKey(s Authorization) bool {
	reason := s.closeReason()
	if reason == "" {
		return false
	}
	c.close(closeRequest{code: frame.ClosePolicy, reason: reason, closeReason: ClosedKeyInvalid, dropQueued: true})
	return true
}

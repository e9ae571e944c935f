package clients

import (
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

// Authorization is the current state of the credentials of an open stream. The zero value lets the stream continue.
type Authorization struct {
	// TokenEnded is the reason why the stream may no longer use its token, or "". It closes the client with 1008.
	TokenEnded string
	// Refused is the reason why the key no longer opens the stream. It closes the client with 1008.
	Refused *relay.Error
	// ScopeChanged reports that the key now sees other notifications. It closes the client with 1008, and it
	// reconnects: the scope of a stream is fixed when it opens.
	ScopeChanged bool
	// Expires is the time when the credentials expire, which closes the client with 1008. Zero means never.
	Expires time.Time
}

// closeReason returns the reason to close the stream, or "".
func (a Authorization) closeReason() string {
	switch {
	case a.TokenEnded != "":
		return a.TokenEnded
	case a.isExpired():
		return "the key has expired"
	case a.Refused != nil:
		return "the key no longer opens this stream"
	case a.ScopeChanged:
		return "the key has changed; connect again"
	default:
		return ""
	}
}

func (a Authorization) isExpired() bool {
	if a.Refused != nil {
		return a.Refused.Code == relay.CodeAuthExpired
	}
	return !a.Expires.IsZero() && !time.Now().Before(a.Expires)
}

// RecheckKeys checks the key of every client (see Subscription.CheckKey) and closes those whose key is no longer
// valid with 1008. Call it after a key has changed. Otherwise the next ping finds the change.
func (s *Server) RecheckKeys() {
	for _, c := range s.allConnections() {
		c.closeIfKeyInvalid()
	}
}

// checkAuthorization checks the key and schedules a check for the time when it expires.
func (c *connection) checkAuthorization() Authorization {
	if c.checkKey == nil {
		return Authorization{}
	}
	c.mu.Lock()
	defer c.mu.Unlock() // so the later of two concurrent checks wins
	s := c.checkKey()
	switch {
	case c.state != stateLive: // cleanup would not stop the timer
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

// closeIfKeyInvalid checks the key and closes the client if it is not valid. It reports whether it closed the client.
func (c *connection) closeIfKeyInvalid() bool { return c.closeForKey(c.checkAuthorization()) }

func (c *connection) closeForKey(s Authorization) bool {
	reason := s.closeReason()
	if reason == "" {
		return false
	}
	closeReason := ClosedKeyInvalid
	switch {
	case s.TokenEnded != "":
		closeReason = ClosedTokenEnded
	case s.Refused != nil && s.Refused.Code == relay.CodeAuthInvalid:
		closeReason = ClosedKeyRemoved
	}
	c.close(closeRequest{code: frame.ClosePolicy, reason: reason, closeReason: closeReason, dropQueued: true})
	return true
}

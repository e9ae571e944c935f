package hub

import (
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Standing is how a key stands to a stream that it has opened. The zero value lets the stream go on.
type Standing struct {
	// Refused is why the key does not open the stream any more; the client is sent away with 1008.
	Refused *relay.Error
	// Changed says that the key opens the stream to other notifications than before; the client is sent away with 1008, to
	// come back at once: what may be seen of a stream is settled when it is opened.
	Changed bool
	// Expires is when the client is sent away with 1008 because the key has expired; zero means never.
	Expires time.Time
}

// over says why the stream is over, and nothing where it goes on.
func (s Standing) over() string {
	switch {
	case s.expired():
		return "the key has expired"
	case s.Refused != nil:
		return "the key no longer opens this stream"
	case s.Changed:
		return "the key has changed; connect again"
	default:
		return ""
	}
}

func (s Standing) expired() bool {
	if s.Refused != nil {
		return s.Refused.Code == relay.CodeAuthExpired
	}
	return !s.Expires.IsZero() && !time.Now().Before(s.Expires)
}

// Recheck asks of every client how its key stands to the stream (see Subscription.Stands), and sends those away with 1008
// whose stream is over. Whoever changes a key calls it then; without that it would be noticed at the next ping.
func (h *Hub) Recheck() {
	for _, c := range h.everyone() {
		c.dismissed()
	}
}

// standing asks the key, and sees to it that it is asked again when it expires.
func (c *client) standing() Standing {
	if c.stands == nil {
		return Standing{}
	}
	c.mu.Lock()
	defer c.mu.Unlock() // so that of two who ask at once the later answer counts
	s := c.stands()
	switch {
	case c.state != live: // nobody would stop it
	case s.Expires.IsZero():
		if c.expiry != nil {
			c.expiry.Stop()
		}
	case c.expiry == nil:
		c.expiry = time.AfterFunc(time.Until(s.Expires), func() { c.dismissed() })
	default:
		c.expiry.Reset(time.Until(s.Expires))
	}
	return s
}

// dismissed sends the client away where its key says so, and reports whether that is so.
func (c *client) dismissed() bool { return c.dismiss(c.standing()) }

func (c *client) dismiss(s Standing) bool {
	reason := s.over()
	if reason == "" {
		return false
	}
	c.close(closing{code: ClosePolicy, reason: reason, ending: EndedExpired, cut: true})
	return true
}

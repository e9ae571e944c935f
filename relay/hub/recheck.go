package hub

// Recheck asks of every client whether its key still opens the stream (see Subscription.Stands), and sends those away
// with 1008 whose key does not. Whoever takes a key away calls it then; without that it would be noticed at the next ping.
func (h *Hub) Recheck() {
	for _, c := range h.everyone() {
		c.dismissed()
	}
}

// dismissed sends the client away where its key no longer opens the stream, and reports whether that is so.
func (c *client) dismissed() bool {
	if c.stands == nil || c.stands() {
		return false
	}
	c.close(closing{code: ClosePolicy, reason: "the key no longer opens this stream", ending: EndedExpired, cut: true})
	return true
}

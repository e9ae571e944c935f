package hub

import (
	"math"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Who gets nothing for long would come back with an old cursor, and be told that something was lost once its entry is
// trimmed, or have all that others got since looked at. So a websocket's client with cursors gets one with a ping when its
// line has moved on by lagEntries, or at all for lagTime. Event streams get theirs with each heartbeat.
const (
	lagEntries = chunkEntries
	lagTime    = time.Minute
)

// lags notes a ping and says whether the client's cursor is old. The caller holds mu.
func (c *client) lags() bool {
	if c.form&(withCursor|asEvent) != withCursor {
		return false
	}
	end := c.line.reached.Load()
	if c.quiet == 0 { // it got a cursor since the last ping
		c.told = end
	}
	c.quiet += min(1, math.MaxUint8-c.quiet)
	moved := end - c.told
	return moved >= lagEntries || moved > 0 && time.Duration(c.quiet)*c.hub.opts.PingInterval > lagTime
}

// pingWithCursor tells the client where its line is, with a ping, and reports false where its replay is not as far.
func (c *client) pingWithCursor() bool {
	l := c.line
	l.mu.Lock() // so that what follows the cursor is what is broadcast to the client
	defer l.mu.Unlock()
	g := c.hub.index.groupOf(c)
	if g == nil {
		return false
	}
	message := relay.Begin(g.follows())
	c.mu.Lock()
	c.told, c.quiet = l.end(), 1
	c.mu.Unlock()
	c.control(append(newPing(), newFrame(message, c.form, l.cursor(l.at))...))
	return true
}

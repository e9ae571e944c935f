package hub

import (
	"math"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// A client that receives nothing for a long time would return with an old cursor. Its entry may be trimmed then, and a
// replay would scan everything since. So a websocket with cursors gets one with a ping when its feed has advanced by
// lagEntries, or at all within lagTime. Event streams get one with each heartbeat.
const (
	staleCursorEntries = replayChunkEntries
	staleCursorTime    = time.Minute
)

// cursorIsStale counts a ping and reports whether the client's cursor is old. The caller holds mu.
func (c *client) cursorIsStale() bool {
	if c.format&(formatCursor|formatSSE) != formatCursor {
		return false
	}
	end := c.feed.endSeq.Load()
	if c.pingsSinceMessage == 0 { // it got a cursor since the last ping
		c.lastCursorSeq = end
	}
	c.pingsSinceMessage += min(1, math.MaxUint8-c.pingsSinceMessage)
	moved := end - c.lastCursorSeq
	return moved >= staleCursorEntries || moved > 0 &&
		time.Duration(c.pingsSinceMessage)*c.hub.opts.PingInterval > staleCursorTime
}

// pingWithCursor sends the position of the feed with a ping. It returns false if the client's replay has not reached
// it.
func (c *client) pingWithCursor() bool {
	l := c.feed
	l.mu.Lock() // the cursor must match the order of broadcasts
	defer l.mu.Unlock()
	g := c.hub.index.groupOf(c)
	if g == nil {
		return false
	}
	message := relay.CursorMessage(g.pipelineName())
	c.mu.Lock()
	c.lastCursorSeq, c.pingsSinceMessage = l.nextSeq(), 1
	c.mu.Unlock()
	c.sendControl(append(newPing(), newFrame(message, c.format, l.formatCursor(l.positions))...))
	return true
}

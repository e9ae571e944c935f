package hub

import (
	"math"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/hub/frame"
)

// Who gets nothing for long would come back with an old cursor, and be told that something was lost once its entry is
// trimmed, or have all that others got since looked at. So a websocket's client with cursors gets one with a ping when its
// line has moved on by lagEntries, or at all for lagTime. Event streams get theirs with each heartbeat.
const (
	staleCursorEntries = replayChunkEntries
	staleCursorTime    = time.Minute
)

// cursorIsStale notes a ping and says whether the client's cursor is old. The caller holds mu.
func (c *connection) cursorIsStale() bool {
	if c.format&(frame.WithCursor|frame.SSE) != frame.WithCursor {
		return false
	}
	end := c.feed.endSeq.Load()
	if c.pingsSinceMessage == 0 { // it got a cursor since the last ping
		c.lastCursorSeq = end
	}
	c.pingsSinceMessage += min(1, math.MaxUint8-c.pingsSinceMessage)
	moved := end - c.lastCursorSeq
	return moved >= staleCursorEntries || moved > 0 && time.Duration(c.pingsSinceMessage)*c.hub.opts.PingInterval > staleCursorTime
}

// pingWithCursor tells the client where its line is, with a ping, and reports false where its replay is not as far.
func (c *connection) pingWithCursor() bool {
	l := c.feed
	l.mu.Lock() // so that what follows the cursor is what is broadcast to the client
	defer l.mu.Unlock()
	g := c.hub.index.groupOf(c)
	if g == nil {
		return false
	}
	message := relay.CursorMessage(g.PipelineName())
	c.mu.Lock()
	c.lastCursorSeq, c.pingsSinceMessage = l.nextSeq(), 1
	c.mu.Unlock()
	c.sendControl(append(frame.NewPing(), frame.New(message, c.format, l.formatCursor(l.positions))...))
	return true
}

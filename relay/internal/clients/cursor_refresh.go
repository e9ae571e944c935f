package clients

import (
	"math"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

// A client that receives nothing for a long time would reconnect with an old cursor. Its replay would read all entries
// since then, or end in a resync once the entry was trimmed. So a websocket with cursors gets a new one with a ping
// after staleCursorEntries entries of its feed, or after staleCursorTime if there were any. Event streams get one with
// each heartbeat.
const (
	staleCursorEntries = replayChunkEntries
	staleCursorTime    = time.Minute
)

// cursorIsStale counts a ping and reports whether the client's cursor is old. The caller holds mu.
func (c *connection) cursorIsStale() bool {
	if c.format&(frame.WithCursor|frame.SSE) != frame.WithCursor {
		return false
	}
	end := c.feed.endSeq.Load()
	if c.pingsSinceMessage == 0 { // it received a cursor since the last ping
		c.lastCursorSeq = end
	}
	c.pingsSinceMessage += min(1, math.MaxUint8-c.pingsSinceMessage)
	moved := end - c.lastCursorSeq
	age := time.Duration(c.pingsSinceMessage) * c.server.opts.PingInterval
	return moved >= staleCursorEntries || moved > 0 && age > staleCursorTime
}

// pingWithCursor sends the cursor of the feed with a ping. It returns false if the client's replay is still running.
func (c *connection) pingWithCursor() bool {
	f := c.feed
	f.mu.Lock() // so no broadcast comes between the cursor and its frame
	defer f.mu.Unlock()
	g := c.server.index.groupOf(c)
	if g == nil {
		return false
	}
	message := relay.CursorMessage(g.streamName())
	c.mu.Lock()
	c.lastCursorSeq, c.pingsSinceMessage = f.nextSeq(), 1
	c.mu.Unlock()
	c.sendControl(append(frame.NewPing(), frame.New(&relay.Notification{Data: message}, c.format, f.formatEndCursor())...))
	return true
}

package clients

import (
	"context"
	"log/slog"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
	"github.com/hubrelay/hubrelay/relay/internal/clients/transport"
)

// closeRequest describes how to close a connection.
type closeRequest struct {
	code        uint16
	reason      string
	frame       []byte // used instead of code and reason
	closeReason CloseReason
	dropQueued  bool // drop what is queued
}

func (c *connection) closeSlowConsumer() bool {
	return c.close(closeRequest{
		code:        frame.CloseSlowConsumer,
		reason:      "too slow: more was waiting than the relay keeps for a client; connect again",
		closeReason: ClosedSlowConsumer, dropQueued: true,
	})
}

// close sends a close frame as the last frame. It returns false if the client was already leaving.
func (c *connection) close(how closeRequest) bool {
	c.mu.Lock()
	if c.state != stateLive {
		c.mu.Unlock()
		return false
	}
	c.state, c.closeReason, c.dropQueued, c.closeFrame = stateClosing, how.closeReason, how.dropQueued, how.frame
	switch {
	case c.closeFrame != nil:
	case c.format&frame.SSE != 0:
		c.closeFrame = frame.NewSSEClose(how.code, how.reason)
	default:
		c.closeFrame = frame.NewClose(how.code, how.reason)
	}
	if how.closeReason != ClosedDrain { // a drain has its own time limit
		c.closeTimer = time.AfterFunc(c.server.opts.CloseTimeout, c.closeNow)
	}
	c.startWriter()
	c.mu.Unlock()
	c.replay.leave()
	c.server.unsubscribe(c)
	return true
}

// closeNow closes the connection without a close frame.
func (c *connection) closeNow() {
	c.mu.Lock()
	c.aborted = true
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		transport.CloseWithoutFlush(conn)
	}
}

// cleanup is called once, by the reader or writer that ends last.
func (c *connection) cleanup() {
	c.mu.Lock()
	c.queue.clear()
	for _, t := range []*time.Timer{c.closeTimer, c.keyTimer} {
		if t != nil {
			t.Stop()
		}
	}
	ending, connected, ended, finished := c.closeReason, !c.handshakePending, c.onGone, c.gone
	c.mu.Unlock()
	if ended != nil {
		ended()
	}
	if finished != nil {
		defer close(finished)
	}
	if connected {
		c.server.opts.Observer.Disconnected(ending, c.format&frame.Deflated != 0)
		c.logClose(ending)
	}
	c.server.remove(c)
}

// logClose logs the end of a connection, at level info if an operator may need to look into it. Above
// maxDisconnectLines, the level is debug, so clients cannot flood the log.
func (c *connection) logClose(ending CloseReason) {
	level := slog.LevelDebug
	if ending == ClosedSlowConsumer || ending == ClosedPingTimeout || ending == ClosedProtocolError {
		level = slog.LevelInfo
	}
	suppressed := 0
	if level == slog.LevelInfo {
		var ok bool
		if suppressed, ok = c.server.disconnectLog.Allow(); !ok {
			level = slog.LevelDebug
		}
	}
	c.server.opts.Log.LogAttrs(context.Background(), level, "client disconnected",
		slog.String("reason", string(ending)), slog.String("key_name", c.key),
		slog.String("address", c.conn.RemoteAddr().String()),
		slog.String("duration", time.Since(c.opened).Round(time.Millisecond).String()),
		slog.Int("suppressed_lines", suppressed))
}

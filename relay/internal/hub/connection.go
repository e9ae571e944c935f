package hub

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/hub/frame"
	"github.com/hubrelay/hubrelay/relay/internal/hub/transport"
)

const (
	// maxClientBytes is how many bytes a client may send between two of our pings, control frames included.
	maxClientBytes = 64 << 10
	// closeAckTimeout is how long a client may take to answer a close frame that its socket has accepted.
	closeAckTimeout = 2 * time.Second
)

type connState uint8

const (
	stateLive    connState = iota
	stateClosing           // a close frame is on its way and nothing may follow it
	stateDead              // nothing is written any more
)

// connection is one connection. Whoever sets writing owns the socket's sending side until he hands over or retires; only
// the owner removes from the queue, anybody may add to it.
//
// What a broadcast looks at comes first, so that it lies together: with thousands of clients nothing else is in the
// processor's caches.
type connection struct {
	mu                sync.Mutex
	state             connState
	handshakePending  bool // the 101 has not been written: everything waits for it
	writing           bool
	dropQueued        bool // drop what is queued before the close frame
	aborted           bool
	readDone          bool
	format            frame.Encoding
	pingsSinceMessage uint8 // pings since it was sent a message
	// fd, raw and conn do not change once held is false. fd is -1 and raw nil where the socket cannot be written to directly
	// (TLS). While conn may be closed the client is, under mu, not live or aborted: see offer.
	fd         int
	queue      writeQueue
	closeFrame []byte // the close frame, until the owner queues it
	raw        syscall.RawConn
	replay     *replay // nil for one that came without a cursor
	conn       net.Conn

	hub           *Hub
	allows        func(hub, account string) bool
	checkKey      func() Authorization // or nil
	key           string               // whose it is, for logs
	lease         *ConnectionLease
	feed          *feed
	opened        time.Time
	lastCursorSeq uint64 // how far its line was when it was told a cursor last; guarded by mu
	seq           uint64 // greater than of all who came before

	group                 *group // guarded by the index, like inGroup
	groupIndex            int
	wheelSlot, wheelIndex int // guarded by the wheel

	pingSentAt     atomic.Int64 // when the oldest unanswered ping was sent, in nanoseconds since the hub began (no clock that is set), or 0
	bytesSincePing atomic.Int32 // bytes that the client sent since our last ping
	controlBytes   int32        // bytes of control frames since the queue was empty; guarded by mu

	// These are guarded by mu, too.
	closeReason CloseReason
	closeTimer  *time.Timer
	keyTimer    *time.Timer
	onGone      func()        // called when the client is gone, or nil
	gone        chan struct{} // closed then, where somebody waits
}

// closeRequest says how a client is sent away.
type closeRequest struct {
	code        uint16
	reason      string
	frame       []byte // instead of code and reason
	closeReason CloseReason
	dropQueued  bool // drop what is queued
}

// write gives the client a burst and reports whether it took it. It writes to an idle socket at once, never blocks, and
// closes a client whose queue is full.
func (c *connection) write(b *frameBatch) bool {
	c.mu.Lock()
	if c.state != stateLive {
		c.mu.Unlock()
		return false
	}
	if c.queue.size > 0 && c.queue.size+b.size > c.hub.opts.QueueBytes {
		c.mu.Unlock()
		c.closeSlowConsumer()
		return false
	}
	c.pingsSinceMessage = 0
	if c.writing || c.handshakePending || c.fd < 0 {
		for _, frame := range b.frames {
			c.queue.push(frame)
		}
		c.startWriter()
		c.mu.Unlock()
		return true
	}
	n, err := c.tryWrite(b.joinedBytes())
	if n == b.size {
		c.mu.Unlock()
		return true
	}
	c.writing = true
	c.queue.putBack(b.frames, n)
	c.finishWrite(err)
	return true
}

// enqueueReplay queues what a replay has for an idle client, and writes at once what the socket takes. It reports false where
// the client is leaving. Only the replay may call it, after [connection.isIdle].
func (c *connection) enqueueReplay(frames [][]byte) bool {
	c.mu.Lock()
	if c.state != stateLive {
		c.mu.Unlock()
		return false
	}
	for _, frame := range frames {
		c.queue.push(frame)
	}
	if c.writing || c.queue.empty() {
		c.mu.Unlock()
		return true
	}
	c.writing = true
	c.mu.Unlock()
	c.tryFlush()
	return true
}

// isIdle says whether everything that was queued has been written, and whether the client stays.
func (c *connection) isIdle() (idle, stays bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.empty() && !c.writing, c.state == stateLive
}

// sendControl queues a control frame behind what is queued, and writes at once where it can. It counts for itself: a chunk of a
// replay may be more than a queue holds, and owing a pong behind it is nobody's fault.
func (c *connection) sendControl(frame []byte) {
	c.mu.Lock()
	if c.queue.empty() {
		c.controlBytes = 0
	}
	c.controlBytes += int32(len(frame))
	switch {
	case c.state != stateLive:
	case c.controlBytes > maxClientBytes:
		c.mu.Unlock()
		c.closeSlowConsumer()
		return
	case c.writing || c.handshakePending:
		c.queue.push(frame)
	default:
		c.queue.push(frame)
		c.writing = true
		c.mu.Unlock()
		c.tryFlush()
		return
	}
	c.mu.Unlock()
}

// sendPing sends a ping, or gives up a client that has not answered or whose key is another now. A client for which something
// is queued is left alone: the write timeout watches it.
func (c *connection) sendPing(now time.Time) {
	c.bytesSincePing.Store(0)
	if c.closeIfKeyInvalid() {
		return
	}
	c.mu.Lock()
	idle, lags := c.state == stateLive && c.queue.empty(), c.cursorIsStale()
	c.mu.Unlock()
	if !idle {
		return
	}
	if c.format&frame.SSE != 0 {
		c.sendHeartbeat() // who is gone is noticed by the system: see giveUpAfter
		return
	}
	at := int64(now.Sub(c.hub.startedAt))
	if first := c.pingSentAt.Load(); first != 0 && at-first >= int64(c.hub.opts.PongTimeout) {
		c.close(closeRequest{code: frame.ClosePolicy, reason: "no answer to a ping", closeReason: ClosedPingTimeout, dropQueued: true})
		return
	}
	c.pingSentAt.CompareAndSwap(0, at)
	if !lags || !c.pingWithCursor() {
		c.sendControl(frame.NewPing())
	}
}

func (c *connection) closeSlowConsumer() bool {
	return c.close(closeRequest{
		code: frame.CloseSlowConsumer, reason: "too slow: more was waiting than the relay keeps for a client; connect again",
		closeReason: ClosedSlowConsumer, dropQueued: true,
	})
}

// close sends a close frame and lets nothing follow it. It reports false where the client was leaving already.
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
	if how.closeReason != ClosedDrain { // a drain has a time limit of its own
		c.closeTimer = time.AfterFunc(c.hub.opts.CloseTimeout, c.closeNow)
	}
	c.startWriter()
	c.mu.Unlock()
	c.hub.unsubscribe(c)
	return true
}

// closeNow cuts the connection off.
func (c *connection) closeNow() {
	c.mu.Lock()
	c.aborted = true
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		transport.CloseWithoutFlush(conn)
	}
}

// read takes what a websocket's client sends until the connection ends. Messages are ignored: browsers cannot send
// pings, and many programs send "ping" as text instead. Its stack is all that an idle client costs beside a few hundred
// bytes, so that it must stay shallow.
func (c *connection) read() {
	var (
		in    = frame.Reader{Deflated: c.format&frame.Deflated != 0}
		space [64]byte
		err   error
	)
	for err == nil {
		var n int
		n, err = c.conn.Read(space[:])
		if n > 0 {
			c.countReceived(n)
			if problem := c.handleInput(&in, space[:n]); problem != nil {
				err = problem
			}
		}
	}
	if in.End() != frame.ByClient {
		c.drainInput()
	}
	c.readerDone()
}

var errCloseFrame = errors.New("close frame received or sent")

// handleInput parses what the client sent and replies. It returns an error when nothing more is to be read.
func (c *connection) handleInput(in *frame.Reader, p []byte) error {
	for len(p) > 0 {
		var r frame.Reply
		p, r = in.Consume(p)
		switch {
		case r.IsClose:
			reason := ClosedByClient
			if in.End() == frame.ByBrokenFrame {
				reason = ClosedProtocolError
			}
			c.close(closeRequest{frame: r.Frame, closeReason: reason, dropQueued: true})
		case r.Frame != nil:
			c.sendControl(r.Frame)
		}
	}
	if in.End() != frame.NotEnded {
		return errCloseFrame
	}
	return nil
}

// countReceived closes a client that sends more than anyone needs to, pongs and empty fragments included.
func (c *connection) countReceived(n int) {
	c.pingSentAt.Store(0)
	if c.bytesSincePing.Add(int32(n)) > maxClientBytes {
		c.close(closeRequest{code: frame.ClosePolicy, reason: "you send too much; this stream is one way", closeReason: ClosedProtocolError, dropQueued: true})
	}
}

// drainInput throws away what still comes behind a close frame of ours: closing a socket with unread bytes resets it, and
// the client would never see why.
func (c *connection) drainInput() {
	c.mu.Lock()
	wait := c.state == stateClosing
	c.mu.Unlock()
	if wait {
		_, _ = io.Copy(io.Discard, c.conn)
	}
}

// readerDone is called once, when nothing will be read any more.
func (c *connection) readerDone() {
	c.mu.Lock()
	c.readDone = true
	if c.state == stateLive {
		c.state, c.closeReason = stateDead, ClosedByClient
	}
	broken, idle, conn := c.state == stateDead, !c.writing, c.conn
	c.mu.Unlock()
	c.replay.wakeUp()
	switch {
	case conn == nil:
	case broken:
		transport.CloseWithoutFlush(conn) // ends the writing, too
	case idle:
		_ = conn.Close()
	}
	if idle {
		c.cleanup()
	}
}

// cleanup is called once, by the last of reader and writer.
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
		c.hub.opts.Observer.Disconnected(ending, c.format&frame.Deflated != 0)
		c.logClose(ending)
	}
	c.hub.remove(c)
}

// canSee tells whether n may be shown to the client.
func (c *connection) canSee(n *relay.Notification) bool {
	return isGlobalResync(n) || c.allows(n.Hub, n.Account)
}

// logClose says at level info what an operator may want to ask about.
func (c *connection) logClose(ending CloseReason) {
	level := slog.LevelDebug
	if ending == ClosedSlowConsumer || ending == ClosedPingTimeout || ending == ClosedProtocolError {
		level = slog.LevelInfo
	}
	c.hub.opts.Log.LogAttrs(context.Background(), level, "a client is gone",
		slog.String("why", string(ending)), slog.String("key", c.key),
		slog.String("remote", c.conn.RemoteAddr().String()), slog.String("connected", time.Since(c.opened).Round(time.Millisecond).String()))
}

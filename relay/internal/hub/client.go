package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// maxClientMessage bounds a message of a client, which has nothing to say.
	maxClientMessage = 4 << 10
	// maxClientBytes is how many bytes a client may send between two of our pings, control frames included.
	maxClientBytes = 64 << 10
	// closeAckTimeout is how long a client may take to answer a close frame that its socket has accepted.
	closeAckTimeout = 2 * time.Second
)

type clientState uint8

const (
	stateLive    clientState = iota
	stateClosing             // a close frame is on its way and nothing may follow it
	stateDead                // nothing is written any more
)

// client is one connection. Whoever sets writing owns the socket's sending side until he hands over or retires; only
// the owner removes from the queue, anybody may add to it.
//
// What a broadcast looks at comes first, so that it lies together: with thousands of clients nothing else is in the
// processor's caches.
type client struct {
	mu                sync.Mutex
	state             clientState
	handshakePending  bool // the 101 has not been written: everything waits for it
	writing           bool
	dropQueued        bool // drop what is queued before the close frame
	aborted           bool
	readDone          bool
	format            frameFormat
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
	checkKey      func() KeyStatus // or nil
	key           string           // whose it is, for logs
	slot          *ConnectionSlot
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

// send gives the client a burst and reports whether it took it. It writes to an idle socket at once, never blocks, and
// closes a client whose queue is full.
func (c *client) send(b *burst) bool {
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
// the client is leaving. Only the replay may call it, after [client.isIdle].
func (c *client) enqueueReplay(frames [][]byte) bool {
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
func (c *client) isIdle() (idle, stays bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.empty() && !c.writing, c.state == stateLive
}

// sendControl queues a control frame behind what is queued, and writes at once where it can. It counts for itself: a chunk of a
// replay may be more than a queue holds, and owing a pong behind it is nobody's fault.
func (c *client) sendControl(frame []byte) {
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
func (c *client) sendPing(now time.Time) {
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
	if c.format&formatSSE != 0 {
		c.sendHeartbeat() // who is gone is noticed by the system: see giveUpAfter
		return
	}
	at := int64(now.Sub(c.hub.startedAt))
	if first := c.pingSentAt.Load(); first != 0 && at-first >= int64(c.hub.opts.PongTimeout) {
		c.close(closeRequest{code: ClosePolicy, reason: "no answer to a ping", closeReason: ClosedPingTimeout, dropQueued: true})
		return
	}
	c.pingSentAt.CompareAndSwap(0, at)
	if !lags || !c.pingWithCursor() {
		c.sendControl(newPing())
	}
}

func newPing() []byte { return []byte{finPing, 0} }

func (c *client) closeSlowConsumer() bool {
	return c.close(closeRequest{
		code: CloseSlowConsumer, reason: "too slow: more was waiting than the relay keeps for a client; connect again",
		closeReason: ClosedSlowConsumer, dropQueued: true,
	})
}

// close sends a close frame and lets nothing follow it. It reports false where the client was leaving already.
func (c *client) close(how closeRequest) bool {
	c.mu.Lock()
	if c.state != stateLive {
		c.mu.Unlock()
		return false
	}
	c.state, c.closeReason, c.dropQueued, c.closeFrame = stateClosing, how.closeReason, how.dropQueued, how.frame
	switch {
	case c.closeFrame != nil:
	case c.format&formatSSE != 0:
		c.closeFrame = sseClose(how.code, how.reason)
	default:
		c.closeFrame = closeFrame(how.code, how.reason)
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
func (c *client) closeNow() {
	c.mu.Lock()
	c.aborted = true
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		closeWithoutFlush(conn)
	}
}

// closeWithoutFlush closes conn without waiting for the far side, as closing TLS may: it writes first.
func closeWithoutFlush(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

// read takes what a websocket's client sends until the connection ends. Messages are ignored: browsers cannot send
// pings, and many programs send "ping" as text instead. Its stack is all that an idle client costs beside a few hundred
// bytes, so that it must stay shallow.
func (c *client) read() {
	var (
		in    = frameReader{deflated: c.format&formatDeflated != 0}
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
	if in.closeReason != ClosedByClient {
		c.drainInput()
	}
	c.readerDone()
}

// countReceived closes a client that sends more than anyone needs to, pongs and empty fragments included.
func (c *client) countReceived(n int) {
	c.pingSentAt.Store(0)
	if c.bytesSincePing.Add(int32(n)) > maxClientBytes {
		c.close(closeRequest{code: ClosePolicy, reason: "you send too much; this stream is one way", closeReason: ClosedProtocolError, dropQueued: true})
	}
}

// drainInput throws away what still comes behind a close frame of ours: closing a socket with unread bytes resets it, and
// the client would never see why.
func (c *client) drainInput() {
	c.mu.Lock()
	wait := c.state == stateClosing
	c.mu.Unlock()
	if wait {
		_, _ = io.Copy(io.Discard, c.conn)
	}
}

// readerDone is called once, when nothing will be read any more.
func (c *client) readerDone() {
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
		closeWithoutFlush(conn) // ends the writing, too
	case idle:
		_ = conn.Close()
	}
	if idle {
		c.cleanup()
	}
}

// cleanup is called once, by the last of reader and writer.
func (c *client) cleanup() {
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
		c.hub.opts.Observer.Disconnected(ending, c.format&formatDeflated != 0)
		c.logClose(ending)
	}
	c.hub.remove(c)
}

// canSee tells whether n may be shown to the client.
func (c *client) canSee(n *relay.Notification) bool {
	return isGlobalResync(n) || c.allows(n.Hub, n.Account)
}

// logClose says at level info what an operator may want to ask about.
func (c *client) logClose(ending CloseReason) {
	level := slog.LevelDebug
	if ending == ClosedSlowConsumer || ending == ClosedPingTimeout || ending == ClosedProtocolError {
		level = slog.LevelInfo
	}
	c.hub.opts.Log.LogAttrs(context.Background(), level, "a client is gone",
		slog.String("why", string(ending)), slog.String("key", c.key),
		slog.String("remote", c.conn.RemoteAddr().String()), slog.String("connected", time.Since(c.opened).Round(time.Millisecond).String()))
}

// isWriteTimeout says whether a write error means that the socket accepted nothing for too long.
func isWriteTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

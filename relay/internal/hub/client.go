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
	// maxClientBytes is the maximum number of bytes that a client may send between two pings, control frames included.
	maxClientBytes = 64 << 10
	// closeAckTimeout is the maximum time for a client to answer a close frame that its socket has accepted.
	closeAckTimeout = 2 * time.Second
)

type clientState uint8

const (
	stateLive    clientState = iota
	stateClosing             // a close frame is on its way and nothing may follow it
	stateDead                // nothing is written any longer
)

// client is one connection. The goroutine that sets writing owns the sending side of the socket until it hands over or
// clears it. Only the owner removes from the queue, and every goroutine may add to it.
//
// The fields that a broadcast reads come first, so they share cache lines. With thousands of clients they are rarely in
// the cache.
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
	// fd, raw and conn do not change after held is false. fd is -1 and raw nil if the socket cannot be written to
	// directly (TLS). If conn may be closed, the client is not live or is aborted, under mu. See offer.
	fd         int
	queue      writeQueue
	closeFrame []byte // the close frame, until the owner queues it
	raw        syscall.RawConn
	replay     *replay // nil for a client without a cursor
	conn       net.Conn

	hub           *Hub
	allows        func(hub, account string) bool
	checkKey      func() KeyStatus // or nil
	key           string           // whose it is, for logs
	slot          *ConnectionSlot
	feed          *feed
	opened        time.Time
	lastCursorSeq uint64 // feed sequence of the last cursor that was sent; guarded by mu
	seq           uint64 // greater than that of all earlier clients

	group                 *group // guarded by the index, like inGroup
	groupIndex            int
	wheelSlot, wheelIndex int // guarded by the wheel

	// time of the oldest unanswered ping in monotonic nanoseconds since the hub started, or 0
	pingSentAt     atomic.Int64
	bytesSincePing atomic.Int32 // bytes that the client sent since our last ping
	controlBytes   int32        // bytes of control frames since the queue was empty; guarded by mu

	// These are guarded by mu, too.
	closeReason CloseReason
	closeTimer  *time.Timer
	keyTimer    *time.Timer
	onGone      func()        // called when the client is gone, or nil
	gone        chan struct{} // closed then, if a goroutine waits
}

// closeRequest describes how to close a client.
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

// enqueueReplay queues a chunk of a replay for an idle client, and writes as much as the socket accepts. It returns
// false if the client is leaving. Only the replay may call it, after [client.isIdle].
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

// isIdle reports whether everything queued is written, and whether the client stays.
func (c *client) isIdle() (idle, stays bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.empty() && !c.writing, c.state == stateLive
}

// sendControl queues a control frame after the queued frames, and writes at once if possible. It has its own limit,
// because a chunk of a replay may exceed the queue limit, and a pong after it is not the client's fault.
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

// sendPing sends a ping, or closes a client that did not answer or whose key has changed. It skips a client with queued
// frames, because the write timeout covers it.
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
		c.close(closeRequest{
			code: ClosePolicy, reason: "no answer to a ping", closeReason: ClosedPingTimeout, dropQueued: true,
		})
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

// close sends a close frame and lets nothing follow it. It returns false if the client is already leaving.
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
	if how.closeReason != ClosedDrain { // a drain has its own time limit
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

// closeWithoutFlush closes conn without waiting for the remote end. Closing TLS would write first.
func closeWithoutFlush(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

// read reads from a websocket until the connection ends. It ignores messages: browsers cannot send pings, and many
// programs send "ping" as text. Its stack is most of the memory of an idle client, so it must stay shallow.
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
		c.close(closeRequest{
			code: ClosePolicy, reason: "you send too much; this stream is one way", closeReason: ClosedProtocolError,
			dropQueued: true,
		})
	}
}

// drainInput discards input after a close frame was sent. Closing a socket with unread bytes resets it, and the client
// would not see the reason.
func (c *client) drainInput() {
	c.mu.Lock()
	wait := c.state == stateClosing
	c.mu.Unlock()
	if wait {
		_, _ = io.Copy(io.Discard, c.conn)
	}
}

// readerDone is called once, when reading has ended.
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

// canSee reports whether the client may see n.
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
		slog.String("remote", c.conn.RemoteAddr().String()), slog.String("connected",
			time.Since(c.opened).Round(time.Millisecond).String()))
}

// isWriteTimeout reports whether a socket accepted nothing for too long.
func isWriteTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

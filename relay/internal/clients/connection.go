package clients

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
	"github.com/hubrelay/hubrelay/relay/internal/clients/transport"
)

const (
	// maxClientBytes is the maximum number of bytes that a client may send between two pings, including control
	// frames.
	maxClientBytes = 64 << 10
	// closeAckTimeout is the maximum time until a client replies to a close frame that its socket has accepted.
	closeAckTimeout = 2 * time.Second
	// maxDrainedBytes is the maximum size of the input that is discarded until that reply.
	maxDrainedBytes = 256 << 10
)

type connState uint8

const (
	stateLive    connState = iota
	stateClosing           // a close frame is queued or sent, nothing may follow it
	stateDead              // nothing is written anymore
)

// connection is one client. The goroutine that sets writing owns the sending direction of the socket until it calls
// releaseWriter or passes it to runWriter. Only the owner removes frames from the queue; any goroutine may add some.
//
// The fields that a broadcast reads are first, to share cache lines. With thousands of clients, no other field is in
// the processor's caches.
type connection struct {
	mu                sync.Mutex
	state             connState
	handshakePending  bool // the response is not written yet; all frames wait for it
	writing           bool
	dropQueued        bool // discard queued frames before the close frame
	aborted           bool
	readDone          bool
	format            frame.Encoding
	pingsSinceMessage uint8 // pings since the last message
	// fd, raw and conn are constant after handshakePending becomes false. fd is -1 and raw is nil if the socket
	// cannot be written directly (TLS). While conn may be closed, the connection is, under mu, not live or aborted:
	// see tryWrite.
	fd         int
	queue      writeQueue
	closeFrame []byte // the close frame, until the owner queues it
	raw        syscall.RawConn
	replay     *replay // nil without a cursor
	conn       net.Conn

	server        *Server
	allows        func(hub, account string) bool
	checkKey      func() Authorization // or nil
	key           string               // name of the key, for logs
	lease         *connectionLease
	feed          *feed
	opened        time.Time
	lastCursorSeq uint64 // position in the feed when the last cursor was sent; guarded by mu
	seq           uint64 // increases with each client

	group                 *group // guarded by the index, like inGroup
	groupIndex            int
	wheelSlot, wheelIndex int // guarded by the wheel

	pingSentAt     atomic.Int64 // time of the oldest unanswered ping in nanoseconds since the server started, or 0
	bytesSincePing atomic.Int32 // bytes received since the last ping
	controlBytes   int32        // bytes of control frames since the queue was empty; guarded by mu

	// The following fields are guarded by mu as well.
	closeReason CloseReason
	closeTimer  *time.Timer
	keyTimer    *time.Timer
	onGone      func()        // called when the client has left, or nil
	gone        chan struct{} // closed when the client has left, or nil
}

// write sends a frameBatch and reports whether the client accepted it. It writes to an idle socket at once, never
// blocks, and closes a client whose queue is full.
func (c *connection) write(b *frameBatch) bool {
	c.mu.Lock()
	if c.state != stateLive {
		c.mu.Unlock()
		return false
	}
	if c.queue.size > 0 && c.queue.size+b.size > c.server.opts.QueueBytes {
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

// enqueueReplay queues the frames of a replay for an idle client and writes what the socket accepts at once. It
// returns false if the client is leaving. Only the replay calls it, after isIdle.
func (c *connection) enqueueReplay(frames [][]byte) bool {
	c.mu.Lock()
	if c.state != stateLive {
		c.mu.Unlock()
		return false
	}
	for _, frame := range frames {
		c.queue.push(frame)
	}
	if c.writing || c.queue.isEmpty() {
		c.mu.Unlock()
		return true
	}
	c.writing = true
	c.mu.Unlock()
	c.tryFlush()
	return true
}

// isIdle reports whether all queued frames have been written, and whether the client stays.
func (c *connection) isIdle() (idle, stays bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.isEmpty() && !c.writing, c.state == stateLive
}

// sendControl queues a control frame and writes it at once if it can. Control frames have their own limit, because
// the chunk of a replay may exceed QueueBytes and must not close a client that sends pings.
func (c *connection) sendControl(frame []byte) {
	c.mu.Lock()
	if c.queue.isEmpty() {
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

// sendPing sends a ping, or closes a client that has not replied or whose key is no longer valid. It skips a client
// with queued frames, because the write timeout applies to that.
func (c *connection) sendPing(now time.Time) {
	c.bytesSincePing.Store(0)
	if c.closeIfKeyInvalid() {
		return
	}
	c.mu.Lock()
	idle, lags := c.state == stateLive && c.queue.isEmpty(), c.cursorIsStale()
	c.mu.Unlock()
	if !idle {
		return
	}
	if c.format&frame.SSE != 0 {
		c.sendHeartbeat() // the kernel detects dead clients: see transport.SetTCPUserTimeout
		return
	}
	at := int64(now.Sub(c.server.startedAt))
	if first := c.pingSentAt.Load(); first != 0 && at-first >= int64(c.server.opts.PongTimeout) {
		c.close(closeRequest{
			code: frame.ClosePolicy, reason: "no reply to a ping", closeReason: ClosedPingTimeout, dropQueued: true,
		})
		return
	}
	c.pingSentAt.CompareAndSwap(0, at)
	if !lags || !c.pingWithCursor() {
		c.sendControl(frame.NewPing())
	}
}

// read reads what a websocket client sends until the connection ends. It ignores messages: browsers cannot send
// pings, and many programs send "ping" as text instead. Its stack is most of the memory of an idle client, so it must
// stay small.
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
			if problem := c.handleInput(&in, space[:n]); problem != nil {
				err = problem
			}
			if c.countReceived(n) {
				err = errFlood
			}
		}
	}
	if in.End() != frame.ByClient {
		c.drainInput()
	}
	c.readerDone()
}

var (
	errCloseFrame = errors.New("close frame received or sent")
	errFlood      = errors.New("the client sent too much")
)

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

// countReceived closes a client that sends more than necessary, including pongs and empty fragments, and returns true.
func (c *connection) countReceived(n int) (isFlood bool) {
	c.pingSentAt.Store(0)
	if c.bytesSincePing.Add(int32(n)) <= maxClientBytes {
		return false
	}
	c.close(closeRequest{
		code: frame.ClosePolicy, reason: "the client sent too many messages; the server does not read them",
		closeReason: ClosedProtocolError, dropQueued: true,
	})
	return true
}

// drainInput discards input after our close frame. Closing a socket with unread bytes resets it, and the client would
// not receive the reason. A flood is not worth that.
func (c *connection) drainInput() {
	c.mu.Lock()
	wait := c.state == stateClosing
	c.mu.Unlock()
	if wait {
		_, _ = io.CopyN(io.Discard, c.conn, maxDrainedBytes)
	}
}

// readerDone is called once, when nothing is read anymore.
func (c *connection) readerDone() {
	c.mu.Lock()
	c.readDone = true
	if c.state == stateLive {
		c.state, c.closeReason = stateDead, ClosedByClient
	}
	broken, idle, conn := c.state == stateDead, !c.writing, c.conn
	c.mu.Unlock()
	c.replay.leave()
	switch {
	case conn == nil:
	case broken:
		transport.CloseWithoutFlush(conn) // also ends the writer
	case idle:
		_ = conn.Close()
	}
	if idle {
		c.cleanup()
	}
}

// canSee reports whether the client may see n.
func (c *connection) canSee(n *relay.Notification) bool {
	return isGlobalResync(n) || c.allows(n.Hub, n.Account)
}

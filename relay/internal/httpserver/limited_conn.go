package httpserver

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

// limitedConn is a counted connection. The fields below Conn are guarded by connLimiter.mu.
type limitedConn struct {
	net.Conn
	limiter        *connLimiter
	ip             *ipConns // nil without a limit per address
	idle, idleOfIP *list.Element
	unfinished     *list.Element // in connLimiter.unfinished, or nil
	unreadSince    time.Time     // of an idle connection, when a search first found unread data
	removed        bool
	rejected       bool          // its request was rejected, and the rest of it may never arrive
	isServed       bool          // its request is in progress, but may be ended
	group          netip.Prefix  // of the peer, or invalid
	isProxy        bool          // the peer is trusted
	isHTTP2        bool          // it has had a request of HTTP/2
	handlers       int           // running, only of HTTP/2 requests
	requests       int           // HTTP/2 requests that count toward the limits
	waiting        int           // HTTP/2 requests in connLimiter.waiting
	orphans        int           // HTTP/2 requests in connLimiter.orphans
	queued         *admission    // in a queue of connLimiter, or nil
	ending         int           // handlers whose request called EndSoon
	resets         *rate.Limiter // nil before the first reset

	received    int64        // bytes, belongs to the reader
	inHandshake atomic.Bool  // of TLS, so bytes are encrypted
	unanswered  atomic.Int64 // bytes that were read since the last write or the start of a handler
	busy        atomic.Bool  // a handler is running, or the connection was hijacked; guarded by connLimiter.mu for writing
}

// handshakeBytes is the number of bytes that a client may send in a TLS handshake before its connection counts as unfinished.
// Usual messages have 0.5 to 2 KiB, so many clients that reconnect at once do not exceed the limit.
const handshakeBytes = 8 << 10

// Read implements net.Conn. After a TLS handshake, plainConn counts, because only it sees responses.
func (c *limitedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received += int64(n)
	if c.inHandshake.Load() {
		c.countRead(n, handshakeBytes)
	}
	return n, err
}

// Write implements net.Conn.
func (c *limitedConn) Write(b []byte) (int, error) {
	if c.inHandshake.Load() {
		c.countWrite()
	}
	return c.Conn.Write(b)
}

// countRead counts bytes of a request. The connection is unfinished after more than limit bytes without a handler or a response.
func (c *limitedConn) countRead(n int, limit int64) {
	before := c.unanswered.Add(int64(n)) - int64(n)
	if before <= limit && before+int64(n) > limit && !c.busy.Load() {
		c.limiter.mu.Lock()
		defer c.limiter.mu.Unlock()
		c.limiter.setUnfinished(c, true)
	}
}

// countWrite is called before a response.
func (c *limitedConn) countWrite() {
	if c.unanswered.Swap(0) > unfinishedBytes && !c.busy.Load() {
		c.limiter.mu.Lock()
		defer c.limiter.mu.Unlock()
		c.limiter.setUnfinished(c, false)
	}
}

// Close closes the connection and ends its count.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	c.limiter.remove(c)
	return err
}

// CloseWrite ends the sending direction.
func (c *limitedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// SyscallConn returns the socket. Streams write to it directly.
func (c *limitedConn) SyscallConn() (syscall.RawConn, error) {
	if socket, ok := c.Conn.(syscall.Conn); ok {
		return socket.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

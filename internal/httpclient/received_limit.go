package httpclient

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptrace"
	"sync"
	"time"
)

// The bytes that a server may send on a connection of net/http. Without a limit, a server of HTTP/2 could keep a core busy with
// frames that belong to no response.
const (
	// responseCredit allows the largest response: its header, its body as far as it is read, and what the server may send
	// before the relay reads or resets the stream.
	responseCredit = 384 << 10
	// maxCredit allows that many concurrent responses, and creditPerSecond frames in between, such as PING.
	maxCredit       = 8 << 20
	creditPerSecond = 16 << 10
	// streamWindow is the number of bytes of a response that a server may send before the relay reads them.
	streamWindow = 128 << 10
)

var errTooManyBytes = errors.New("the server sent more bytes than its responses may have")

// creditConn closes the connection if the server sends too much.
type creditConn struct {
	net.Conn

	mu     sync.Mutex
	credit int64
	last   time.Time // of the last refill
}

func newCreditConn(conn net.Conn) *creditConn {
	return &creditConn{Conn: conn, credit: responseCredit, last: time.Now()} // for the handshake of TLS and the first frames
}

// Read implements net.Conn.
func (c *creditConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.spend(int64(n), time.Now()) {
		_ = c.Close()
		return 0, errTooManyBytes
	}
	return n, err
}

// spend reports whether the server may send n more bytes.
func (c *creditConn) spend(n int64, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if elapsed := now.Sub(c.last); elapsed > 100*time.Millisecond {
		c.credit = min(c.credit+int64(min(elapsed.Seconds(), 3600)*creditPerSecond), maxCredit)
		c.last = now
	}
	c.credit -= n
	return c.credit >= 0
}

// addResponse allows one more response.
func (c *creditConn) addResponse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.credit = min(c.credit+responseCredit, maxCredit)
}

// withCredit returns a context for a request that allows a response on its connection.
func withCredit(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		conn := info.Conn
		if secure, ok := conn.(*tls.Conn); ok {
			conn = secure.NetConn()
		}
		if c, ok := conn.(*creditConn); ok {
			c.addResponse()
		}
	}})
}

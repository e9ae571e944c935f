package httpclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/http2budget"
)

// newHTTP2 returns a pool for https servers that choose HTTP/2. It makes the TLS connections itself, and net/http uses
// them for HTTP/2 with prior knowledge. So http2Conn sees unencrypted frames.
func (t *Transport) newHTTP2() *http2Pool {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	p := &http2Pool{conns: make(map[*http2Conn]struct{})}
	p.transport = &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return t.dialHTTP2(ctx, network, address, p)
		},
		Protocols:              protocols,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingWait},
		MaxIdleConnsPerHost:    idleConns,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
		DisableCompression:     true,
	}
	return p
}

// errHTTP1 reports that a server that used to choose HTTP/2 now chose HTTP/1.1.
var errHTTP1 = errors.New("the server speaks HTTP/1.1")

// maxDials limits the connections that one request may open. net/http repeats a request on a new connection each time that the
// server ends a connection with GOAWAY.
const maxDials = 3

var errTooManyDials error = &http2Error{
	fmt.Errorf("no response on %d HTTP/2 connections: the server ended them or allows too few streams", maxDials),
}

type dialCountKey struct{}

// withDialCount returns the context of a request. dialHTTP2 counts in it.
func withDialCount(ctx context.Context) context.Context {
	return context.WithValue(ctx, dialCountKey{}, new(atomic.Int32))
}

// errPoolRetired is the result of a dial for which no request waits.
var errPoolRetired = errors.New("the request of this connection has ended")

// dialHTTP2 makes a connection of pool.
func (t *Transport) dialHTTP2(ctx context.Context, network, address string, pool *http2Pool) (net.Conn, error) {
	if dials, ok := ctx.Value(dialCountKey{}).(*atomic.Int32); ok && dials.Add(1) > maxDials {
		return nil, errTooManyDials
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	raw, err := t.dialer(ctx, network, address)
	if err != nil {
		return nil, err
	}
	counted := &countedConn{Conn: raw}
	secure, err := t.handshakeTLS(ctx, counted, host)
	if err == nil && secure.ConnectionState().NegotiatedProtocol != "h2" {
		err = errHTTP1
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	c := &http2Conn{Conn: secure, raw: counted, pool: pool}
	c.frames.SkipPreface()
	if !pool.add(c) {
		_ = c.Close()
		return nil, errPoolRetired
	}
	return c, nil
}

// countedConn counts the bytes that it receives.
type countedConn struct {
	net.Conn
	received int64 // belongs to the reader
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received += int64(n)
	return n, err
}

// earnFactor multiplies the bytes of requests that earn credits, because a small request may lead to several frames.
const earnFactor = 4

var errTooManyFrames = errors.New("the server sent too many HTTP/2 frames or TLS records without content")

// http2Conn is a connection to a server of HTTP/2. It is closed if the server sends a flood of frames that carry no content.
type http2Conn struct {
	net.Conn
	raw      *countedConn
	pool     *http2Pool
	overhead http2budget.TLSOverhead
	frames   http2budget.Counter
	budget   http2budget.Budget
}

// Read implements net.Conn.
func (c *http2Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	headers, others := c.frames.Count(b[:n])
	frames := headers + others
	if !c.overhead.Add(n, c.raw.received) || frames > 0 && !c.budget.Spend(frames, 0, time.Now()) {
		_ = c.Close()
		return 0, errTooManyFrames
	}
	return n, err
}

// Write implements net.Conn.
func (c *http2Conn) Write(b []byte) (int, error) {
	c.budget.Earn(earnFactor * len(b))
	return c.Conn.Write(b)
}

// closeTimeout limits how long Close waits. TLS writes a close_notify, which blocks if the server does not read.
const closeTimeout = 250 * time.Millisecond

// Close implements net.Conn.
func (c *http2Conn) Close() error {
	c.pool.remove(c)
	force := time.AfterFunc(closeTimeout, func() { _ = c.raw.Close() })
	defer force.Stop()
	return c.Conn.Close()
}

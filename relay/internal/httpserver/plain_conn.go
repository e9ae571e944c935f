package httpserver

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/hubrelay/hubrelay/internal/http2budget"
	"github.com/hubrelay/hubrelay/relay"
)

// plainListener terminates TLS before net/http, which then serves HTTP/1, and HTTP/2 with prior knowledge. So plainConn sees
// unencrypted bytes: it counts requests that net/http rejects without a handler, and replaces the error responses of net/http.
type plainListener struct {
	net.Listener
	config *tls.Config // nil without TLS
	log    *slog.Logger
}

// Accept returns a *plainConn. It does not wait for the TLS handshake.
func (l *plainListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &plainConn{Conn: conn, log: l.log}
	c.proxied, _ = conn.(*proxyproto.Conn)
	limited, ok := rawConn(conn).(*limitedConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("accepted an uncounted connection: %T", conn)
	}
	c.limited = limited
	if l.config != nil {
		c.secure = tls.Server(conn, l.config)
		c.limited.inHandshake.Store(true)
		c.Conn = c.secure
	}
	return c, nil
}

// plainConn is an accepted connection. Read and Write have unencrypted bytes.
type plainConn struct {
	net.Conn                  // secure with TLS
	secure   *tls.Conn        // nil without TLS
	proxied  *proxyproto.Conn // the connection of a trusted proxy, or nil; it may have a header of the PROXY protocol
	limited  *limitedConn     // the connection below TLS and the PROXY protocol
	log      *slog.Logger
	overhead http2budget.TLSOverhead
	frames   http2budget.Counter // of the bytes read
	budget   http2budget.Budget

	reportHandshake sync.Once
	loadState       sync.Once
	state           *tls.ConnectionState
}

// Read implements net.Conn. The first call reads the header of the PROXY protocol and completes the TLS handshake.
func (c *plainConn) Read(b []byte) (int, error) {
	if c.proxied != nil {
		if !c.identifyClient() {
			return 0, io.EOF // net/http responds to most other errors
		}
		c.proxied = nil
	}
	if c.secure != nil && c.limited.inHandshake.Load() {
		if err := c.secure.Handshake(); err != nil {
			c.reportHandshake.Do(func() { c.rejectHandshake(err) })
			return 0, err
		}
		c.limited.inHandshake.Store(false)
		c.limited.countWrite()
	}
	n, err := c.Conn.Read(b)
	c.limited.countRead(n, unfinishedBytes)
	if c.secure != nil && !c.overhead.Add(n, c.limited.received) && c.limited.limiter.closeFlooding(c.limited) {
		return 0, io.EOF
	}
	requests, others := c.frames.Count(b[:n])
	if requests > 0 && !c.limited.limiter.admitRequests(c.limited, requests) {
		return 0, io.EOF
	}
	if others > 0 && !c.budget.Spend(others, requests, time.Now()) && c.limited.limiter.closeFlooding(c.limited) {
		return 0, io.EOF
	}
	return n, err
}

// identifyClient reads the header of the PROXY protocol, if there is one, and makes the connection count for the client that it
// names. It reports false if that client has reached a limit.
func (c *plainConn) identifyClient() bool {
	header := c.proxied.ProxyHeader()
	if header == nil || header.Command.IsLocal() {
		return true
	}
	client, err := netip.ParseAddrPort(header.SourceAddr.String())
	return err != nil || c.limited.limiter.setClient(c.limited, client.Addr())
}

// rejectHandshake logs a failed handshake. A client that speaks HTTP without TLS gets a response.
func (c *plainConn) rejectHandshake(err error) {
	c.log.Debug("TLS handshake failed", "address", c.RemoteAddr().String(), "error", err)
	var noTLS tls.RecordHeaderError
	if errors.As(err, &noTLS) && noTLS.Conn != nil && noTLS.RecordHeader[0] >= 'A' && noTLS.RecordHeader[0] <= 'Z' {
		_ = writeRawError(noTLS.Conn, relay.NewError(relay.CodeInvalidSyntax, "this port requires TLS; use https"))
	}
}

// Write writes b, or the envelope if b is a 4xx or 5xx response of net/http.
func (c *plainConn) Write(b []byte) (int, error) {
	c.limited.countWrite()
	c.budget.Earn(len(b))
	if e := parseNetHTTPError(b); e != nil {
		if err := writeRawError(c.Conn, e); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// CloseWrite closes the write side. net/http uses it to let the client read the response.
func (c *plainConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// tlsState returns the state of TLS after the handshake, and nil without TLS.
func (c *plainConn) tlsState() *tls.ConnectionState {
	if c.secure == nil {
		return nil
	}
	c.loadState.Do(func() {
		state := c.secure.ConnectionState()
		c.state = &state
	})
	return c.state
}

// rawConn returns a connection without the wrappers of this package and of the PROXY protocol: the *tls.Conn, or without TLS
// the *limitedConn. net/http has read everything that they buffer.
func rawConn(conn net.Conn) net.Conn {
	if plain, ok := conn.(*plainConn); ok {
		conn = plain.Conn
	}
	if proxied, ok := conn.(*proxyproto.Conn); ok {
		conn = proxied.Raw()
	}
	return conn
}

// limitedConnOf returns the counted connection below a connection of the http.Server. It may return nil.
func limitedConnOf(conn net.Conn) *limitedConn {
	if plain, ok := conn.(*plainConn); ok {
		return plain.limited
	}
	return nil
}

// setTLS sets the TLS field of requests, which net/http leaves empty because it does not terminate TLS.
func setTLS(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*plainConn); ok {
			r.TLS = c.tlsState()
		}
		next.ServeHTTP(w, r)
	})
}

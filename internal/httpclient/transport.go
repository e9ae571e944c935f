package httpclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/netdeadline"
	"github.com/hubrelay/hubrelay/internal/netguard"
)

const (
	// maxResponseHeader is the maximum size of a response header in bytes, including preceding 1xx responses.
	maxResponseHeader = 64 << 10
	dialTimeout       = 10 * time.Second
	idleTimeout       = 90 * time.Second
	// idleConns exceeds any reasonable concurrency. Otherwise a busy sink would dial for every request.
	idleConns = 128
	// After pingAfter without data, net/http sends an HTTP/2 ping. It closes the connection if no response arrives
	// within pingWait. All attempts share one HTTP/2 connection, and the kernel needs 15 minutes to detect a dead one.
	pingAfter = 15 * time.Second
	pingWait  = 10 * time.Second
)

// Transport sends POST requests whose bodies are in memory. It handles HTTP/1.1 on the goroutine of the caller.
// net/http needs two more goroutines per connection and wakes both for each request, which is most of the cost of a
// short request. Transport leaves two cases to net/http: HTTP/2, which it offers first to an https server, and requests
// that [NewRequestTemplate] cannot encode.
//
// Otherwise it behaves as net/http does. The end of a request's context ends the request at once. A closed idle
// connection is not used. A request that was written is never repeated. Only one goroutine may read the body of a
// response. Transport is safe for concurrent use. The embedded fields must not change after the first request.
type Transport struct {
	*http.Transport

	dialer    func(ctx context.Context, network, address string) (net.Conn, error)
	idle      idlePool
	http1Host atomic.Pointer[string] // the https host that does not support HTTP/2
	drainTime time.Duration          // the time to write the rest of a request after an early 2xx response
}

// NewTransport returns a transport that checks each address after DNS resolution, just before dialing it. It uses no
// proxy, because the guard must check the address of the target itself. tlsConfig may be nil.
func NewTransport(g *netguard.Guard, tlsConfig *tls.Config) *Transport {
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second, Control: g.Control}
	t := &Transport{dialer: dialer.DialContext, drainTime: drainTimeout}
	t.Transport = &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := t.dialer(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return newCreditConn(conn), nil
		},
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2:   true,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingAfter, PingTimeout: pingWait, MaxReceiveBufferPerStream: streamWindow,
		},
		MaxIdleConnsPerHost:    idleConns,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
		DisableCompression:     true,
	}
	return t
}

// SetDialer replaces how connections are made, for example through a proxy. Call it before the first request.
func (t *Transport) SetDialer(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	t.dialer = dial
}

// Post sends p once and returns the response, whatever its status. It follows no redirects, stores no cookies, and puts
// no URL in its errors. The Request field of the response must not be used.
func (t *Transport) Post(ctx context.Context, p *Request) (*http.Response, error) {
	if !t.canHandle(p) {
		return t.postNetHTTP(ctx, p)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	u := p.Head.url
	for c := t.idle.get(u); c != nil; c = t.idle.get(u) {
		resp, err := t.roundTripOn(ctx, c, p)
		if !errors.Is(err, errConnClosed) {
			return resp, err
		}
	}
	c, err := t.dial(ctx, u)
	switch {
	case errors.Is(err, errHTTP2):
		t.http1Host.Store(nil)
		return t.postNetHTTP(ctx, p)
	case err != nil:
		return nil, netdeadline.Cause(ctx, err)
	}
	return t.roundTripOn(ctx, c, p)
}

// canHandle reports whether Transport can send p without net/http. Over TLS it can once net/http has found that the
// host speaks HTTP/1.1.
func (t *Transport) canHandle(p *Request) bool {
	u := p.Head.url
	isHTTP1 := u.Scheme == "http"
	if host := t.http1Host.Load(); host != nil && u.Scheme == "https" {
		isHTTP1 = *host == u.Host
	}
	return isHTTP1 && p.Head.encoded != nil && arePrintableASCII(p.Values)
}

// postNetHTTP sends p with net/http, and stores the host of a server that chose HTTP/1.1.
func (t *Transport) postNetHTTP(ctx context.Context, p *Request) (*http.Response, error) {
	// An http.Client would also follow redirects and store cookies.
	resp, err := t.RoundTrip(p.ToHTTP(withCredit(ctx)))
	if err == nil && resp.TLS != nil && resp.ProtoMajor == 1 {
		if known := t.http1Host.Load(); known == nil || *known != p.Head.url.Host {
			host := p.Head.url.Host
			t.http1Host.Store(&host)
			t.Transport.CloseIdleConnections()
		}
	}
	return resp, err
}

// CloseIdleConnections closes idle connections, and connections that become idle before the next request.
func (t *Transport) CloseIdleConnections() {
	t.idle.close()
	t.Transport.CloseIdleConnections()
}

// errHTTP2 reports that a server that used to choose HTTP/1.1 now chose HTTP/2.
var errHTTP2 = errors.New("the server speaks HTTP/2")

func (t *Transport) dial(ctx context.Context, u *url.URL) (*http1Conn, error) {
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "http":
		port = "80"
	default:
		port = "443"
	}
	raw, err := t.dialer(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return nil, err
	}
	if u.Scheme == "http" {
		return newConn(u, raw, raw), nil
	}
	secure, err := t.handshakeTLS(ctx, raw, u.Hostname())
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return newConn(u, raw, secure), nil
}

func (t *Transport) handshakeTLS(ctx context.Context, raw net.Conn, host string) (*tls.Conn, error) {
	config := t.TLSClientConfig.Clone()
	if config.ServerName == "" {
		config.ServerName = host
	}
	config.NextProtos = []string{"h2", "http/1.1"}
	limited, cancel := context.WithTimeout(ctx, t.TLSHandshakeTimeout)
	defer cancel()
	secure := tls.Client(raw, config)
	err := secure.HandshakeContext(limited)
	switch {
	case err != nil && limited.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("no TLS handshake within %s: %w", t.TLSHandshakeTimeout, os.ErrDeadlineExceeded)
	case err == nil && secure.ConnectionState().NegotiatedProtocol == "h2":
		return nil, errHTTP2
	}
	return secure, err
}

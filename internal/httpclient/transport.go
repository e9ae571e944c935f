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
	// See http2Pool for a connection that is not dead, but gets no responses.
	pingAfter = 15 * time.Second
	pingWait  = 10 * time.Second
)

// Transport sends POST requests whose bodies are in memory. It handles HTTP/1.1 on the goroutine of the caller.
// net/http needs two more goroutines per connection and wakes both for each request, which is most of the cost of a
// short request. Transport leaves two cases to net/http: HTTP/2, for https servers that choose it, and requests that
// [NewRequestTemplate] cannot encode.
//
// Otherwise it behaves as net/http does. The end of a request's context ends the request at once. A closed idle
// connection is not used. A request that was written is never repeated. Only one goroutine may read the body of a
// response. Transport is safe for concurrent use. The embedded fields must not change after the first request.
type Transport struct {
	*http.Transport

	dialer    func(ctx context.Context, network, address string) (net.Conn, error)
	idle      idlePool
	http2     atomic.Pointer[http2Pool]
	http2Host atomic.Pointer[string] // the https host that supports HTTP/2
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
	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	t.Transport = &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return t.dialer(ctx, network, address)
		},
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    dialTimeout,
		Protocols:              http1,
		MaxIdleConnsPerHost:    idleConns,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
		DisableCompression:     true,
	}
	t.http2.Store(t.newHTTP2())
	return t
}

// SetDialer replaces how connections are made, for example through a proxy. Call it before the first request.
func (t *Transport) SetDialer(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	t.dialer = dial
}

// Post sends p once and returns the response, whatever its status. It follows no redirects, stores no cookies, and puts
// no URL in its errors. The Request field of the response must not be used.
func (t *Transport) Post(ctx context.Context, p *Request) (*http.Response, error) {
	return rejectUpgrade(t.post(ctx, p))
}

// errSwitchedProtocols reports a server that does not speak HTTP after its response.
var errSwitchedProtocols = errors.New("the server switched to another protocol (status 101)")

// rejectUpgrade returns an error for a response 101. Its body is the connection, and no context limits reading it.
func rejectUpgrade(resp *http.Response, err error) (*http.Response, error) {
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		_ = resp.Body.Close()
		return nil, errSwitchedProtocols
	}
	return resp, err
}

// UpgradeRejecter is a transport that fails after a response 101. Without it, code that reads the bodies of all responses
// can hang.
type UpgradeRejecter struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (u UpgradeRejecter) RoundTrip(r *http.Request) (*http.Response, error) {
	return rejectUpgrade(u.RoundTripper.RoundTrip(r))
}

func (t *Transport) post(ctx context.Context, p *Request) (*http.Response, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	u := p.Head.url
	if t.isHTTP2Host(u) {
		resp, err := t.postHTTP2(ctx, p)
		if !errors.Is(err, errHTTP1) {
			return resp, err
		}
		t.http2Host.Store(nil)
	}
	if p.Head.encoded == nil || !arePrintableASCII(p.Values) {
		return t.RoundTrip(p.ToHTTP(ctx))
	}
	for c := t.takeIdle(p); c != nil; c = t.takeIdle(p) {
		resp, err := t.roundTripOn(ctx, c, p)
		if !errors.Is(err, errConnClosed) {
			return resp, err
		}
	}
	c, err := t.dial(ctx, u)
	switch {
	case errors.Is(err, errHTTP2):
		t.http2Host.Store(&u.Host)
		return t.postHTTP2(ctx, p)
	case err != nil:
		return nil, netdeadline.Cause(ctx, err)
	}
	return t.roundTripOn(ctx, c, p)
}

// takeIdle returns an idle connection for p, or nil.
func (t *Transport) takeIdle(p *Request) *http1Conn {
	if p.NewConnection {
		return nil
	}
	return t.idle.get(p.Head.url)
}

func (t *Transport) isHTTP2Host(u *url.URL) bool {
	host := t.http2Host.Load()
	return host != nil && u.Scheme == "https" && *host == u.Host
}

// CloseIdleConnections closes idle connections, and connections that become idle before the next request.
func (t *Transport) CloseIdleConnections() {
	t.idle.close()
	t.Transport.CloseIdleConnections()
	t.retireHTTP2(t.http2.Load())
}

// errHTTP2 reports that a server chose HTTP/2.
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
	if err == nil && secure.ConnectionState().NegotiatedProtocol == "h2" {
		err = errHTTP2
	}
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
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("no TLS handshake within %s: %w", t.TLSHandshakeTimeout, os.ErrDeadlineExceeded)
	}
	return secure, err
}

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

	"github.com/hubrelay/hubrelay/internal/netguard"
)

const (
	// maxResponseHeader bounds the header of an answer together with what comes before it (1xx), in bytes.
	maxResponseHeader = 64 << 10
	dialTimeout       = 10 * time.Second
	idleTimeout       = 90 * time.Second
	// idleConns is more than any sensible concurrency, so that a busy sink does not dial for every request.
	idleConns = 128
	// A connection that is silent for pingAfter is asked for a sign of life, and left when none comes within pingWait: all
	// attempts share one HTTP/2 connection, and the kernel takes a quarter of an hour to notice that it is dead.
	pingAfter = 15 * time.Second
	pingWait  = 10 * time.Second
)

// Transport makes posts whose bodies are in memory. It speaks HTTP/1.1 on the goroutine of its caller, where net/http needs
// two more for a connection and wakes both for each request, which is most of what a short post costs. What it leaves to
// net/http: HTTP/2, which an https server is asked for first, and what [NewRequestTemplate] cannot write.
//
// It follows net/http in everything else: the end of a request's context ends it at once, whatever it waits for; an idle
// connection that has ended is not used, and a post that was written is never written again. An answer's body is for
// one goroutine. Transport may be used concurrently; what its embedded fields say is not to be changed then.
type Transport struct {
	*http.Transport

	idle      idlePool
	http1Host atomic.Pointer[string] // the https host that would not speak HTTP/2
	drainTime time.Duration          // how long a receiver that said yes before it has read all may take for the rest of it
}

// NewTransport returns a transport that judges each address after DNS, just before it is dialled. It asks no proxy,
// since the guard must judge the target itself. tlsConfig may be nil.
func NewTransport(g *netguard.Guard, tlsConfig *tls.Config) *Transport {
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second, Control: g.Control}
	return &Transport{drainTime: drainTimeout, Transport: &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    dialTimeout,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingWait},
		MaxIdleConnsPerHost:    idleConns,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
		DisableCompression:     true,
	}}
}

// Post sends p once and returns the answer, whatever its status. It follows no redirect, keeps no cookie, and puts no URL
// in its errors. The answer's Request is not to be used.
func (t *Transport) Post(ctx context.Context, p *Request) (*http.Response, error) {
	if !t.canHandle(p) {
		return t.viaNetHTTP(ctx, p)
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
		return t.viaNetHTTP(ctx, p)
	case err != nil:
		return nil, contextError(ctx, err)
	}
	return t.roundTripOn(ctx, c, p)
}

// canHandle tells whether a post is for us.
func (t *Transport) canHandle(p *Request) bool {
	u := p.Head.url
	known := u.Scheme == "http"
	if host := t.http1Host.Load(); host != nil && u.Scheme == "https" {
		known = *host == u.Host
	}
	return known && p.Head.encoded != nil && allPlain(p.Values)
}

// viaNetHTTP lets net/http do it, and remembers a server that it had to speak HTTP/1.1 to.
func (t *Transport) viaNetHTTP(ctx context.Context, p *Request) (*http.Response, error) {
	// RoundTrip rather than an http.Client, which would do more than Post says.
	resp, err := t.RoundTrip(p.ToHTTP(ctx))
	if err == nil && resp.TLS != nil && resp.ProtoMajor == 1 {
		if known := t.http1Host.Load(); known == nil || *known != p.Head.url.Host {
			host := p.Head.url.Host
			t.http1Host.Store(&host)
			t.Transport.CloseIdleConnections()
		}
	}
	return resp, err
}

// CloseIdleConnections closes what is idle, and what becomes idle before the next request.
func (t *Transport) CloseIdleConnections() {
	t.idle.close()
	t.Transport.CloseIdleConnections()
}

// errHTTP2 says that a server chose HTTP/2 that did not the last time.
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
	raw, err := t.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
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

// contextError is why a request failed: because its context did, or with err.
func contextError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

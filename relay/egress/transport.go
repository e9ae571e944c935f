package egress

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

	"github.com/hubrelay/hubrelay/relay/guard"
)

const (
	// headerAnswer bounds the header of an answer together with what comes before it (1xx), in bytes.
	headerAnswer = 64 << 10
	dialTimeout  = 10 * time.Second
	idleTimeout  = 90 * time.Second
	// idleConns is more than any sensible concurrency, so that a busy sink does not dial for every request.
	idleConns = 128
	// sentAtOnce is what a socket takes although the far side does not read. What is longer must be written while the
	// answer is read, since that may come first.
	sentAtOnce = 32 << 10
	// A connection that is silent for pingAfter is asked for a sign of life, and left when none comes within pingWait: all
	// attempts share one HTTP/2 connection, and the kernel takes a quarter of an hour to notice that it is dead.
	pingAfter = 15 * time.Second
	pingWait  = 10 * time.Second
)

// Transport is an [http.RoundTripper] for requests whose bodies are in memory. It speaks HTTP/1.1 on the goroutine of its
// caller, where net/http needs two more for a connection and wakes both for each request, which is most of what a
// short post costs. What it leaves to net/http: HTTP/2, which an https server is asked for first, and bodies that one
// write may not get rid of.
//
// It follows net/http in everything else: the end of a request's context ends it at once, whatever it waits for; an idle
// connection that has ended is not used, and a post that was written is never written again. An answer's body is for
// one goroutine. Transport may be used concurrently; what its embedded fields say is not to be changed then.
type Transport struct {
	*http.Transport

	idle  idle
	http1 atomic.Pointer[string] // the https host that would not speak HTTP/2
}

// NewTransport returns a transport that judges each address after DNS, just before it is dialled. It asks no proxy,
// since the guard must judge the target itself. tlsConfig may be nil.
func NewTransport(g *guard.Guard, tlsConfig *tls.Config) *Transport {
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second, Control: g.Control}
	return &Transport{Transport: &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    dialTimeout,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingWait},
		MaxIdleConnsPerHost:    idleConns,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: headerAnswer,
		DisableCompression:     true,
	}}
}

// RoundTrip sends a request once and returns the answer, whatever its status.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if !t.suits(req) {
		return t.leave(req)
	}
	ctx := req.Context()
	if ctx.Err() != nil {
		closeBody(req)
		return nil, context.Cause(ctx)
	}
	for c := t.idle.take(req.URL); c != nil; c = t.idle.take(req.URL) {
		resp, err := t.exchange(c, req)
		if !errors.Is(err, errNothingSent) {
			return resp, err
		}
		if req, err = again(req); err != nil {
			return nil, err
		}
	}
	c, err := t.dial(ctx, req.URL)
	switch {
	case errors.Is(err, errHTTP2):
		t.http1.Store(nil)
		return t.leave(req)
	case err != nil:
		closeBody(req)
		return nil, ended(ctx, err)
	}
	return t.exchange(c, req)
}

// suits tells whether a request is for us.
func (t *Transport) suits(req *http.Request) bool {
	known := req.URL.Scheme == "http"
	if host := t.http1.Load(); host != nil && req.URL.Scheme == "https" {
		known = *host == req.URL.Host
	}
	counted := req.ContentLength > 0 && req.GetBody != nil || req.ContentLength == 0 && (req.Body == nil || req.Body == http.NoBody)
	return known && counted && req.ContentLength <= sentAtOnce && sendable(req)
}

// leave lets net/http do it, and remembers a server that it had to speak HTTP/1.1 to.
func (t *Transport) leave(req *http.Request) (*http.Response, error) {
	resp, err := t.Transport.RoundTrip(req)
	if err == nil && resp.TLS != nil && resp.ProtoMajor == 1 {
		if known := t.http1.Load(); known == nil || *known != req.URL.Host {
			host := req.URL.Host
			t.http1.Store(&host)
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

func (t *Transport) dial(ctx context.Context, u *url.URL) (*conn, error) {
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
	secure, err := t.shakeHands(ctx, raw, u.Hostname())
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return newConn(u, raw, secure), nil
}

func (t *Transport) shakeHands(ctx context.Context, raw net.Conn, host string) (*tls.Conn, error) {
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

// again is the request with its body from the beginning.
func again(req *http.Request) (*http.Request, error) {
	if req.GetBody == nil {
		return req, nil
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, err
	}
	next := *req
	next.Body = body
	return &next, nil
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// ended is why a request failed: because its context did, or with err.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

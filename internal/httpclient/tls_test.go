package httpclient

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// startServer starts an http or https server and returns a client that trusts it. The server offers HTTP/2 while http2
// is true.
func startServer(t testing.TB, scheme string, http2 *atomic.Bool, serve http.HandlerFunc) (*Client, *Target) {
	t.Helper()
	srv := httptest.NewUnstartedServer(serve)
	var config *tls.Config
	if scheme == "http" {
		srv.Start()
	} else {
		srv.EnableHTTP2 = true
		srv.StartTLS()
		srv.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := srv.TLS.Clone()
			if c.GetConfigForClient = nil; !http2.Load() {
				c.NextProtos = []string{"http/1.1"}
			}
			return c, nil
		}
		roots := x509.NewCertPool()
		roots.AddCert(srv.Certificate())
		config = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	t.Cleanup(srv.Close)
	c := NewClient(localGuard(t), config)
	t.Cleanup(c.Close)
	target, err := ParseTarget(srv.URL+"/s3cret", localGuard(t))
	if err != nil {
		t.Fatal(err)
	}
	return c, target
}

// The server chooses the protocol, and may change its choice.
func TestPost_ServerChoosesProtocol(t *testing.T) {
	t.Parallel()
	var http2 atomic.Bool
	var proto, remoteAddr atomic.Value
	c, target := startServer(t, "https", &http2, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
		proto.Store(r.Proto)
		remoteAddr.Store(r.RemoteAddr)
	})
	post := func() string {
		t.Helper()
		resp, err := c.Post(t.Context(), target, nil, []byte("body"))
		if err != nil || resp.Body != "body" {
			t.Fatalf("got %+v, %v", resp, err)
		}
		return proto.Load().(string) //nolint:errcheck // only strings are stored
	}
	if got := post(); got != "HTTP/1.1" {
		t.Errorf("first post: got protocol %s, want HTTP/1.1", got)
	}
	var conns []any
	for range 3 {
		if got := post(); got != "HTTP/1.1" || c.transport.http2Host.Load() != nil {
			t.Errorf("later post: got protocol %s, want HTTP/1.1", got)
		}
		conns = append(conns, remoteAddr.Load())
	}
	if conns[0] != conns[2] {
		t.Error("the connection was not reused")
	}
	c.Close()
	http2.Store(true)
	for range 2 {
		if got := post(); got != "HTTP/2.0" || c.transport.http2Host.Load() == nil {
			t.Errorf("after the server enabled HTTP/2: got protocol %s", got)
		}
	}
	c.Close()
	http2.Store(false)
	if got := post(); got != "HTTP/1.1" || c.transport.http2Host.Load() != nil {
		t.Errorf("after the server disabled HTTP/2: got protocol %s", got)
	}
}

// corkedConn buffers writes while corked is true.
type corkedConn struct {
	net.Conn
	buf    []byte
	corked bool
}

func (c *corkedConn) Write(p []byte) (int, error) {
	if c.corked {
		c.buf = append(c.buf, p...)
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *corkedConn) flush() {
	_, _ = c.Conn.Write(c.buf)
	c.buf, c.corked = nil, false
}

// An unsolicited second response may arrive together with the first, in a separate TLS record. TLS then buffers the
// record, and neither the buffered reader nor the socket shows it. It must not become the response to the next request.
func TestPost_UnsolicitedTLSRecord(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(nil)
	srv.StartTLS()
	certificate, roots := srv.TLS.Certificates[0], x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	srv.Close()
	for _, second := range []string{"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n", ""} {
		config := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
		target, conns := startScriptedServer(t, func(_ int, conn net.Conn, _ *bufio.Reader) {
			cork := &corkedConn{Conn: conn}
			secure := tls.Server(cork, config)
			for in := bufio.NewReader(secure); readRequest(in); {
				cork.corked = true
				_, _ = io.WriteString(secure, okResponse)
				_, _ = io.WriteString(secure, second)
				cork.flush()
			}
		})
		target, err := ParseTarget("https://"+target.Host(), localGuard(t))
		if err != nil {
			t.Fatal(err)
		}
		c := NewClient(localGuard(t), &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots})
		for n := 1; n <= 3; n++ {
			resp, err := c.Post(t.Context(), target, nil, []byte("{}"))
			if err != nil || resp.Status != http.StatusOK {
				t.Errorf("%q, post %d: got %+v, %v", second, n, resp, err)
			}
		}
		c.Close()
		if want := map[bool]int{true: 3, false: 1}[second != ""]; conns() != want {
			t.Errorf("%q: got %d connections, want %d", second, conns(), want)
		}
	}
}

// A server with an untrusted certificate is rejected by both clients, and a handshake has a time limit.
func TestPost_FailedHandshakes(t *testing.T) {
	t.Parallel()
	c, target := startServer(t, "https", new(atomic.Bool), func(http.ResponseWriter, *http.Request) {})
	c.transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	c.transport.TLSHandshakeTimeout = time.Hour // a machine that is busy with other tests can take seconds
	host := target.Host()
	for _, http2Host := range []*string{nil, &host} {
		c.transport.http2Host.Store(http2Host)
		var untrusted *tls.CertificateVerificationError
		if _, err := c.Post(t.Context(), target, nil, []byte("{}")); !errors.As(err, &untrusted) {
			t.Errorf("got error %v, want a CertificateVerificationError", err)
		}
	}
	c.transport.dialer = func(context.Context, string, string) (net.Conn, error) {
		local, remote := net.Pipe()
		t.Cleanup(func() { _ = remote.Close() })
		go func() { _, _ = io.Copy(io.Discard, remote) }()
		return local, nil
	}
	c.transport.TLSHandshakeTimeout = 20 * time.Millisecond
	_, err := c.Post(t.Context(), target, nil, []byte("{}"))
	if !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "no TLS handshake within 20ms") {
		t.Errorf("got error %v, want a handshake timeout", err)
	}
	c.transport.TLSHandshakeTimeout = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Post(ctx, target, nil, []byte("{}")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want context.DeadlineExceeded", err)
	}
}

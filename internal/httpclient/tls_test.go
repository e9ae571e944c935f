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

// server is an http or https server that speaks HTTP/2 as long as modern says so, a client that trusts it, and its address.
func server(t testing.TB, scheme string, modern *atomic.Bool, serve http.HandlerFunc) (*Client, *Target) {
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
			if c.GetConfigForClient = nil; !modern.Load() {
				c.NextProtos = []string{"http/1.1"}
			}
			return c, nil
		}
		roots := x509.NewCertPool()
		roots.AddCert(srv.Certificate())
		config = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	t.Cleanup(srv.Close)
	c := NewClient(local(t), config)
	t.Cleanup(c.Close)
	target, err := ParseTarget(srv.URL+"/s3cret", local(t))
	if err != nil {
		t.Fatal(err)
	}
	return c, target
}

// Which protocol is spoken is the server's choice, whenever it changes its mind.
func TestProtocols(t *testing.T) {
	t.Parallel()
	var modern atomic.Bool
	var proto, from atomic.Value
	c, target := server(t, "https", &modern, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
		proto.Store(r.Proto)
		from.Store(r.RemoteAddr)
	})
	post := func() string {
		t.Helper()
		answer, err := c.Post(t.Context(), target, nil, []byte("body"))
		if err != nil || answer.Body != "body" {
			t.Fatalf("got %+v, %v", answer, err)
		}
		return proto.Load().(string) //nolint:errcheck // only strings are stored
	}
	if got := post(); got != "HTTP/1.1" {
		t.Errorf("the first post went by %s", got)
	}
	var conns []any
	for range 3 {
		if got := post(); got != "HTTP/1.1" || c.transport.http1Host.Load() == nil {
			t.Errorf("another went by %s", got)
		}
		conns = append(conns, from.Load())
	}
	if conns[0] != conns[2] {
		t.Error("the connection was not used again")
	}
	c.Close()
	modern.Store(true)
	for range 2 {
		if got := post(); got != "HTTP/2.0" || c.transport.http1Host.Load() != nil {
			t.Errorf("after the server has learned HTTP/2, a post went by %s", got)
		}
	}
}

// corked is a connection that holds back what is written until it is told.
type corked struct {
	net.Conn
	held  []byte
	holds bool
}

func (c *corked) Write(p []byte) (int, error) {
	if c.holds {
		c.held = append(c.held, p...)
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *corked) pull() {
	_, _ = c.Conn.Write(c.held)
	c.held, c.holds = nil, false
}

// A second answer that nobody asked for may have come with the first, in a record of its own: TLS holds it then, where
// neither the buffer nor the socket shows it. It is not the answer to the next post.
func TestUnaskedRecord(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(nil)
	srv.StartTLS()
	certificate, roots := srv.TLS.Certificates[0], x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	srv.Close()
	for _, second := range []string{"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n", ""} {
		target, conns := script(t, func(_ int, conn net.Conn, _ *bufio.Reader) {
			cork := &corked{Conn: conn}
			secure := tls.Server(cork, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
			for in := bufio.NewReader(secure); taken(in); {
				cork.holds = true
				_, _ = io.WriteString(secure, fine)
				_, _ = io.WriteString(secure, second)
				cork.pull()
			}
		})
		target, err := ParseTarget("https://"+target.Host(), local(t))
		if err != nil {
			t.Fatal(err)
		}
		c := NewClient(local(t), &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots})
		host := target.Host()
		c.transport.http1Host.Store(&host)
		for n := 1; n <= 3; n++ {
			answer, err := c.Post(t.Context(), target, nil, []byte("{}"))
			if err != nil || answer.Status != http.StatusOK {
				t.Errorf("%q, post %d: %+v, %v", second, n, answer, err)
			}
		}
		c.Close()
		if want := map[bool]int{true: 3, false: 1}[second != ""]; conns() != want {
			t.Errorf("%q: %d connections, want %d", second, conns(), want)
		}
	}
}

// A server whose certificate nobody vouches for is refused on every way to it, and a handshake may not take for ever.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	var modern atomic.Bool
	c, target := server(t, "https", &modern, func(http.ResponseWriter, *http.Request) {})
	c.transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	host := target.Host()
	for _, known := range []*string{nil, &host} {
		c.transport.http1Host.Store(known)
		var unknown *tls.CertificateVerificationError
		if _, err := c.Post(t.Context(), target, nil, []byte("{}")); !errors.As(err, &unknown) {
			t.Errorf("got %v", err)
		}
	}
	c.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		t.Cleanup(func() { _ = far.Close() })
		go func() { _, _ = io.Copy(io.Discard, far) }()
		return near, nil
	}
	c.transport.TLSHandshakeTimeout = 20 * time.Millisecond
	if _, err := c.Post(t.Context(), target, nil, []byte("{}")); !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "no TLS handshake within 20ms") {
		t.Errorf("got %v", err)
	}
	c.transport.TLSHandshakeTimeout = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Post(ctx, target, nil, []byte("{}")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

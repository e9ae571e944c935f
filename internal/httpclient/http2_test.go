package httpclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// Many large responses of HTTP/2 at once share one connection, although the client resets their streams.
func TestPost_LargeHTTP2Responses(t *testing.T) {
	t.Parallel()
	var http2 atomic.Bool
	http2.Store(true)
	var mu sync.Mutex
	connections := make(map[string]bool)
	c, target := startServer(t, "https", &http2, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		connections[r.RemoteAddr] = true
		mu.Unlock()
		_, _ = w.Write(bytes.Repeat([]byte("x"), 300<<10))
	})
	post := func() {
		resp, err := c.Post(t.Context(), target, nil, []byte("{}"))
		if err != nil || resp.Status != http.StatusOK {
			t.Errorf("got %+v, %v", resp, err)
		}
	}
	post()
	for range 5 {
		var posts sync.WaitGroup
		for range 64 {
			posts.Go(post)
		}
		posts.Wait()
	}
	if len(connections) != 1 {
		t.Errorf("got %d connections, want 1", len(connections))
	}
}

// Many small requests and responses earn what they need.
func TestPost_ManyHTTP2Requests(t *testing.T) {
	t.Parallel()
	var http2 atomic.Bool
	http2.Store(true)
	c, target := startServer(t, "https", &http2, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("{}"))
		_ = http.NewResponseController(w).Flush() // more frames
	})
	for range 5_000 {
		if resp, err := c.Post(t.Context(), target, nil, []byte("{}")); err != nil || resp.Status != http.StatusOK {
			t.Fatalf("got %+v, %v", resp, err)
		}
	}
}

// A server of HTTP/2 that floods a connection with frames loses it.
func TestPost_HTTP2Flood(t *testing.T) {
	t.Parallel()
	sent := make(chan int, 1)
	c, target := serveFrames(t, func(conn net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		var b bytes.Buffer
		framer := http2.NewFramer(&b, nil)
		_ = framer.WriteSettings() // into memory
		for range 1000 {
			_ = framer.WritePing(true, [8]byte{})
		}
		n := 0
		for err := error(nil); n < 1<<30 && err == nil; n += b.Len() {
			_, err = conn.Write(b.Bytes())
		}
		select {
		case sent <- n:
		default: // a later connection
		}
	})
	if resp, err := c.Post(t.Context(), target, nil, []byte("{}")); err == nil {
		t.Errorf("got %+v, want an error", resp)
	}
	select {
	case n := <-sent:
		if n > 32<<20 { // the limit and the buffers of both sockets
			t.Errorf("the server sent %d bytes", n)
		}
	case <-time.After(15 * time.Second):
		t.Error("the connection is still open")
	}
}

// A server that ends each connection with GOAWAY does not make one request open many connections.
func TestPost_HTTP2GoAwayLoop(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	c, target := serveFrames(t, func(conn net.Conn) {
		conns.Add(1)
		_, _ = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
		framer := http2.NewFramer(conn, conn)
		_ = framer.WriteSettings() // the client notices a failure
		for {
			switch frame, err := framer.ReadFrame(); {
			case err != nil:
				return
			case frame.Header().Type == http2.FrameHeaders:
				_ = framer.WriteGoAway(0, http2.ErrCodeNo, nil)
			}
		}
	})
	if resp, err := c.Post(t.Context(), target, nil, []byte("{}")); !errors.Is(err, errTooManyDials) ||
		!errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %+v, %v, want %v", resp, err, errTooManyDials)
	}
	if n := conns.Load(); n > maxDials+1 { // the first one finds that the server chooses HTTP/2
		t.Errorf("got %d connections", n)
	}
}

// serveFrames starts a TLS server of HTTP/2 that calls serve for each connection, and returns a client for it.
func serveFrames(t *testing.T, serve func(net.Conn)) (*Client, *Target) {
	t.Helper()
	trusted := httptest.NewUnstartedServer(nil)
	trusted.EnableHTTP2 = true
	trusted.StartTLS() // for its certificate
	t.Cleanup(trusted.Close)
	config := trusted.TLS.Clone()
	config.NextProtos = []string{"h2"}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				if conn.(*tls.Conn).Handshake() == nil { //nolint:forcetypeassert,errcheck // of a tls listener
					serve(conn)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		wg.Wait()
	})
	roots := x509.NewCertPool()
	roots.AddCert(trusted.Certificate())
	c := NewClient(localGuard(t), &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots})
	t.Cleanup(c.Close)
	target, err := ParseTarget("https://"+listener.Addr().String()+"/", localGuard(t))
	if err != nil {
		t.Fatal(err)
	}
	return c, target
}

// All attempts share one HTTP/2 connection: when it is dead, later attempts must not wait for the kernel to notice.
func TestPost_LeavesDeadHTTP2Connection(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	p := testkit.StartProxy(t, srv.Listener.Addr().String)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	c := NewClient(localGuard(t), &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots})
	defer c.Close()
	pings := c.transport.http2.Load().transport.HTTP2
	pings.SendPingTimeout, pings.PingTimeout = time.Second, time.Second
	target, err := ParseTarget("https://"+p.Addr()+"/", localGuard(t))
	if err != nil {
		t.Fatal(err)
	}
	post := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := c.Post(ctx, target, nil, []byte("{}"))
		return err
	}
	if err := post(testkit.Patience); err != nil {
		t.Fatal(err)
	}
	p.Stall()
	if err := post(5 * time.Second); err == nil {
		t.Fatal("a dead connection delivered")
	}
	if err := post(testkit.Patience); err != nil {
		t.Errorf("the next attempt is still on the dead connection: %v", err)
	}
}

package httpserver

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

type connCounts struct{ open, rejectedTotal, rejectedIP, rejectedBlocked, evicted, failed atomic.Int64 }

func (c *connCounts) ConnectionOpened()  { c.open.Add(1) }
func (c *connCounts) ConnectionClosed()  { c.open.Add(-1) }
func (c *connCounts) ConnectionEvicted() { c.evicted.Add(1) }
func (c *connCounts) AcceptFailed()      { c.failed.Add(1) }
func (c *connCounts) ConnectionRejected(l ConnLimit) {
	switch l {
	case ConnLimitIP:
		c.rejectedIP.Add(1)
	case ConnLimitBlocked:
		c.rejectedBlocked.Add(1)
	default:
		c.rejectedTotal.Add(1)
	}
}

// isClosed reports whether the server has closed a connection.
func isClosed(t *testing.T, conn net.Conn) bool {
	t.Helper()
	_, err := conn.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection is still open")
	}
	return err != nil
}

// A connection in use is never closed for a new one. An idle one is, the longest idle first.
func TestConnLimits_EvictsIdleConnections(t *testing.T) {
	t.Parallel()
	var counts connCounts
	proceed, entered := make(chan struct{}), make(chan struct{})
	s := run(t, Options{
		ConnLimits: ConnLimits{Total: 3}, ConnObserver: &counts,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				entered <- struct{}{}
				<-proceed
			}
			_, _ = io.WriteString(w, "ok")
		}),
	})
	const get = " HTTP/1.1\r\nHost: a\r\n\r\n"
	answered := func(conn net.Conn) {
		t.Helper()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	request := func(conn net.Conn, path string) {
		t.Helper()
		if _, err := io.WriteString(conn, "GET "+path+get); err != nil {
			t.Fatal(err)
		}
	}
	kept, silent := dial(t, s), dial(t, s)
	testkit.WaitForValue(t, "two connections", 2, func() int64 { return counts.open.Load() })
	request(kept, "/") // is then idle for a shorter time than silent
	answered(kept)
	testkit.WaitForValue(t, "two idle connections", 2, func() int {
		s.limiter.mu.Lock()
		defer s.limiter.mu.Unlock()
		return s.limiter.idle.Len()
	})
	busy := dial(t, s)
	request(busy, "/slow")
	<-entered

	next := []net.Conn{dial(t, s)}
	request(next[0], "/slow")
	<-entered
	if !isClosed(t, silent) {
		t.Error("the longest idle connection is open")
	}
	next = append(next, dial(t, s))
	request(next[1], "/slow")
	<-entered
	if !isClosed(t, kept) {
		t.Error("the connection that waits for a request is open")
	}
	if rejected := dial(t, s); !isClosed(t, rejected) {
		t.Error("a connection beyond the limit is open")
	}
	close(proceed)
	for _, conn := range append(next, busy) {
		answered(conn)
	}
	if counts.evicted.Load() != 2 || counts.rejectedTotal.Load() != 1 || counts.open.Load() != 3 {
		t.Errorf("got %d evicted, %d rejected, %d open, want 2, 1, 3", counts.evicted.Load(),
			counts.rejectedTotal.Load(), counts.open.Load())
	}
	_ = busy.Close()
	testkit.WaitForValue(t, "the end of a connection", 2, func() int64 { return counts.open.Load() })
}

// Neither a slow header nor the unread body of a rejected request holds a connection that another client needs.
func TestConnLimits_EvictsUnfinishedRequests(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, request string }{
		{"slow header", "POST / HTTP/1.1\r\nHost: a\r\nX-Slow: "},
		{"unread body", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nunfinished"},
	} {
		var counts connCounts
		draining := make(chan struct{}, 1)
		s := run(t, Options{
			ConnLimits: ConnLimits{Total: 1}, ConnObserver: &counts,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				EndSoon(w, r)
				draining <- struct{}{}
				_, _ = io.Copy(io.Discard, r.Body)
			}),
		})
		slow := dial(t, s)
		if _, err := io.WriteString(slow, tt.request); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(tt.request, "unfinished") {
			<-draining
		} else {
			testkit.WaitForValue(t, "the connection", 1, func() int64 { return counts.open.Load() })
		}
		testkit.Eventually(t, tt.name+": a new connection is accepted", func() error {
			res, err := http.Get("http://" + s.Addr().String()) // a header that was not read yet is not evicted
			if err != nil {
				return err
			}
			return res.Body.Close()
		})
		if !isClosed(t, slow) {
			t.Errorf("%s: the connection is open", tt.name)
		}
		http.DefaultClient.CloseIdleConnections()
	}
}

// addrConn is a connection from an address that this machine does not have.
type addrConn struct {
	net.Conn
	remote netip.AddrPort
}

func (c addrConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

// A search for idle connections skips those with unread data. It closes them after maxUnreadTime.
func TestConnLimits_EvictsBehindUnreadData(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	limiter := newConnLimiter(Options{Log: slog.New(slog.DiscardHandler)})
	var conns []*limitedConn
	for i := range maxEvictionTries + 1 {
		client, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = accepted.Close() }()
		if i < maxEvictionTries {
			if _, err := client.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			testkit.WaitFor(t, "the byte", func() bool { return hasUnreadData(accepted) })
		}
		c := limiter.add(accepted)
		limiter.setIdle(c, true)
		conns = append(conns, c)
	}
	if limiter.evict(&limiter.idle) {
		t.Fatal("a connection with a fresh request was closed")
	}
	if !limiter.evict(&limiter.idle) || !conns[maxEvictionTries].removed {
		t.Error("the idle connection was not closed")
	}
	conns[0].unreadSince = time.Now().Add(-maxUnreadTime)
	if !limiter.evict(&limiter.idle) || !conns[0].removed {
		t.Error("the connection whose data is not read was not closed")
	}
}

func TestConnLimits_PerIP(t *testing.T) {
	t.Parallel()
	var counts connCounts
	l := newConnLimiter(Options{
		ConnLimits: ConnLimits{Total: 100, PerIP: 2}, ConnObserver: &counts, Log: testkit.Log(t),
		TrustedProxies: clientaddr.Proxies{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
	})
	open := func(address string) *limitedConn {
		t.Helper()
		server, client := net.Pipe()
		t.Cleanup(func() { _ = client.Close() })
		return l.add(addrConn{server, netip.AddrPortFrom(netip.MustParseAddr(address), 1234)})
	}
	for _, tt := range []struct {
		address string
		allowed int
	}{
		{"192.0.2.1", 2},
		{"::ffff:192.0.2.1", 0}, // the same client
		{"2001:db8::1", 2},
		{"2001:db8::ffff", 0}, // the same /64
		{"2001:db8:0:1::1", 2},
		{"127.0.0.1", 5},
		{"::1", 5},
		{"10.1.2.3", 5},
	} {
		allowed := 0
		for range 5 {
			if open(tt.address) != nil {
				allowed++
			}
		}
		if allowed != tt.allowed {
			t.Errorf("%s: %d connections were accepted, want %d", tt.address, allowed, tt.allowed)
		}
	}
	first := open("198.51.100.1")
	second := open("198.51.100.1")
	l.onState(&plainConn{limited: second}, http.StateNew)
	if third := open("198.51.100.1"); third == nil || !second.removed || first.removed {
		t.Error("the idle connection of the address did not make room")
	}
	_ = first.Close()
	_ = first.Close() // counts once
	if open("198.51.100.1") == nil || open("198.51.100.1") != nil {
		t.Error("a closed connection did not make room for exactly one")
	}
	if l.ips[clientaddr.Group(netip.MustParseAddr("198.51.100.1"))].open != 2 {
		t.Error("the count of the address is wrong")
	}
}

type failingListener struct {
	net.Listener
	failures []error
}

func (l *failingListener) Accept() (net.Conn, error) {
	if len(l.failures) > 0 {
		err := l.failures[0]
		l.failures = l.failures[1:]
		return nil, err
	}
	return l.Listener.Accept()
}

// Without free file descriptors, the listener logs the error once, counts it, and goes on.
func TestConnLimits_TooManyOpenFiles(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	failure := &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	var log testkit.Buffer
	var counts connCounts
	s := run(t, Options{
		Listener:     &failingListener{inner, []error{failure, failure}},
		ConnObserver: &counts, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	conn := dial(t, s)
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.StatusCode != 200 {
		t.Errorf("got %v, %v", res, err)
	}
	if counts.failed.Load() != 2 || strings.Count(log.String(), "too many open files") != 1 {
		t.Errorf("got %d failures, want 2, and one in the log:\n%s", counts.failed.Load(), log.String())
	}
}

// Long headers that do not end are limited, because net/http limits their bytes, but not their fields.
func TestConnLimits_UnfinishedHeaders(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		conn func(*testing.T, *Server) net.Conn
		tls  bool
	}{
		{"plain", dial, false},
		{"TLS", func(t *testing.T, s *Server) net.Conn {
			t.Helper()
			conn := tls.Client(dial(t, s), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a test certificate
			if err := conn.HandshakeContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			return conn
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var counts connCounts
			// A slow machine needs longer than the usual timeout to open all connections.
			o := Options{ConnObserver: &counts, ReadHeaderTimeout: time.Hour}
			if tt.tls {
				o.CertFile, o.KeyFile = writeCertificate(t, t.TempDir(), "a")
			}
			s := run(t, o)
			send := func(text string) net.Conn {
				conn := tt.conn(t, s)
				if _, err := io.WriteString(conn, text); err != nil {
					t.Fatal(err)
				}
				return conn
			}
			long := "GET / HTTP/1.1\r\n" + strings.Repeat("a:\r\n", unfinishedBytes)
			short := send("GET / HTTP/1.1\r\n")
			oldest := send(long)
			testkit.WaitForValue(t, "unfinished headers", 1, func() int { // before the server reads others
				s.limiter.mu.Lock()
				defer s.limiter.mu.Unlock()
				return s.limiter.unfinished.Len()
			})
			for range maxUnfinished {
				send(long)
			}
			testkit.WaitForValue(t, "closed connections", 1, func() int64 { return counts.evicted.Load() })
			if !isClosed(t, oldest) {
				t.Error("the oldest connection with a long header is open")
			}
			for name, conn := range map[string]net.Conn{"short": short, "new": send("GET / HTTP/1.1\r\n")} {
				if _, err := io.WriteString(conn, "Host: a\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				res, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil || res.StatusCode != http.StatusOK {
					t.Fatalf("a request with a %s header: got %v, %v", name, res, err)
				}
				_ = res.Body.Close()
			}
			// The first message of a TLS handshake can be as long, so it makes room, too.
			if n := counts.evicted.Load(); n != 1 && !tt.tls {
				t.Errorf("%d connections were closed, want 1", n)
			}
		})
	}
}

// Requests with many header fields are rejected, and do not close a connection that sends long requests.
func TestRequests_HeaderFields(t *testing.T) {
	t.Parallel()
	s := run(t, Options{})
	conn := dial(t, s)
	reader := bufio.NewReader(conn)
	for range 3 * maxUnfinished / 100 {
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nLong: "+strings.Repeat("a", 2*unfinishedBytes)+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(reader, nil)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("got %v, %v", res, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
	for fields, want := range map[int]int{maxHeaderFields: http.StatusOK, maxHeaderFields + 1: http.StatusRequestEntityTooLarge} {
		conn := dial(t, s)
		// Host is not a header field for net/http.
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n"+strings.Repeat("a: b\r\n", fields)+"\r\n"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%d fields: got %d, want %d", fields, res.StatusCode, want)
		}
	}
}

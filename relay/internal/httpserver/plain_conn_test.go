package httpserver

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/http2budget"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// net/http itself rejects requests whose header is too large or invalid, and keeps them until the client reads the response.
func TestHTTP2_LimitsRequestsThatNetHTTPRejects(t *testing.T) {
	t.Parallel()
	certFile, keyFile := writeCertificate(t, t.TempDir(), "a")
	for name, tt := range map[string]struct {
		options Options
		header  []hpack.HeaderField
	}{
		"too large":      {Options{}, slices.Repeat([]hpack.HeaderField{{Name: "cookie", Value: strings.Repeat("x", 1500)}}, 12)},
		"invalid":        {Options{}, []hpack.HeaderField{{Name: "connection", Value: "x"}}},
		"invalid in TLS": {Options{CertFile: certFile, KeyFile: keyFile}, []hpack.HeaderField{{Name: "connection", Value: "x"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var counts connCounts
			tt.options.ConnObserver = &counts
			s := run(t, tt.options)
			for range maxGroupWaiting/maxStreams + 1 {
				conn := dial(t, s)
				if tt.options.CertFile != "" {
					conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // a test certificate
				}
				sendRequests(t, conn, tt.header)
			}
			testkit.WaitForValue(t, "closed connections", 1, func() int64 { return counts.evicted.Load() })
			if tt.options.CertFile != "" {
				return
			}
			res, err := http.Get("http://" + s.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Errorf("got status %d for another connection, want 200", res.StatusCode)
			}
		})
	}
}

// A burst of valid requests from one address waits until handlers have begun. If none begin, a connection is closed.
func TestConnLimits_BurstOfRequestsWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var counts connCounts
		limiter := newConnLimiter(Options{ConnObserver: &counts, Log: slog.New(slog.DiscardHandler)})
		connect := func() *limitedConn {
			_, conn := net.Pipe()
			return limiter.add(conn)
		}
		first, second := connect(), connect()
		limiter.admitRequests(first, maxGroupWaiting)
		admit := func() (isAdmitted *atomic.Bool) {
			isAdmitted = new(atomic.Bool)
			go func() {
				limiter.admitRequests(second, maxStreams)
				isAdmitted.Store(true)
			}()
			synctest.Wait()
			return isAdmitted
		}
		isAdmitted := admit()
		for range maxStreams {
			if isAdmitted.Load() {
				t.Fatal("more requests than the limit were admitted")
			}
			(&http2Request{conn: first}).beginRequest()
			synctest.Wait()
		}
		if !isAdmitted.Load() || counts.evicted.Load() != 0 {
			t.Errorf("after handlers began: admitted %t, closed %d, want true, 0", isAdmitted.Load(), counts.evicted.Load())
		}
		isAdmitted = admit()
		time.Sleep(waitingTime)
		synctest.Wait()
		if !isAdmitted.Load() || counts.evicted.Load() != 1 || !first.removed {
			t.Errorf("without handlers: admitted %t, closed %d, want true and the first connection",
				isAdmitted.Load(), counts.evicted.Load())
		}
	})
}

// addressConn is a connection of an address.
type addressConn struct {
	net.Conn
	addr string
}

func (c addressConn) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.addr), 4711))
}

// If many addresses send bursts, a few requests of another one are admitted before the bursts that wait. The requests of a closed
// connection count until their handlers have begun, because each has a goroutine.
func TestConnLimits_ManyAddresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var counts connCounts
		limiter := newConnLimiter(Options{ConnObserver: &counts, Log: slog.New(slog.DiscardHandler)})
		admit := func(addr string, requests int) (*limitedConn, *atomic.Bool) {
			_, conn := net.Pipe()
			c, isAdmitted := limiter.add(addressConn{conn, addr}), new(atomic.Bool)
			go func() { isAdmitted.Store(limiter.admitRequests(c, requests)) }()
			synctest.Wait()
			return c, isAdmitted
		}
		want := func(what string, isAdmitted *atomic.Bool, want bool, closed int64) {
			t.Helper()
			synctest.Wait()
			if got := isAdmitted.Load(); got != want || counts.evicted.Load() != closed {
				t.Fatalf("%s: admitted %t, closed %d, want %t, %d", what, got, counts.evicted.Load(), want, closed)
			}
		}
		begin := func(c *limitedConn, requests int) {
			for range requests {
				(&http2Request{conn: c}).beginRequest()
			}
		}
		busiest, _ := admit("198.51.100.1", 901)
		for addr, requests := range map[string]int{
			"198.51.100.2": 900, "198.51.100.3": 900, "198.51.100.4": 800, "198.51.100.5": maxWaiting - 3501,
		} {
			_, isAdmitted := admit(addr, requests)
			want("a burst below the limit", isAdmitted, true, 0)
		}
		closed, lost := make(chan bool), limiter.add(addressConn{nil, "198.51.100.9"})
		go func() { closed <- limiter.admitRequests(lost, 901) }()
		synctest.Wait()
		_, large := admit("198.51.100.6", 901)
		want("a burst above the limit", large, false, 0)
		limiter.mu.Lock()
		limiter.remove(lost)
		limiter.mu.Unlock()
		if <-closed {
			t.Error("requests of a closed connection were admitted")
		}
		only, isOnly := admit("198.51.100.7", 1)
		want("the only request of an address", isOnly, true, 0)
		begin(only, 1)
		few, small := admit("198.51.100.8", 5)
		want("a few requests", small, false, 1)
		if !busiest.removed {
			t.Error("another connection than the busiest was closed")
		}
		begin(busiest, 4)
		want("a few requests before handlers begin", small, false, 1)
		begin(busiest, 1)
		want("a few requests after handlers began", small, true, 1)
		begin(few, 5)
		time.Sleep(orphanTime)
		want("the burst above the limit", large, true, 1)
	})
}

// The limits of an address apply to clients of a trusted proxy that forwards bytes, by the address in the PROXY protocol.
func TestProxyProtocol_LimitsClients(t *testing.T) {
	t.Parallel()
	var counts connCounts
	s := run(t, Options{
		ConnObserver: &counts, ConnLimits: ConnLimits{PerIP: maxGroupWaiting/maxStreams + 3},
		TrustedProxies: clientaddr.Proxies{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	})
	connect := func(client string) net.Conn {
		conn := dial(t, s)
		if _, err := io.WriteString(conn, "PROXY TCP4 "+client+" 127.0.0.1 4711 80\r\n"); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	invalid := []hpack.HeaderField{{Name: "connection", Value: "x"}}
	for range maxGroupWaiting/maxStreams + 2 {
		sendRequests(t, connect("198.51.100.7"), invalid)
	}
	testkit.WaitForValue(t, "closed connections", 2, func() int64 { return counts.evicted.Load() })
	testkit.WaitFor(t, "a blocked address", func() bool {
		conn := connect("198.51.100.7")
		sendRequests(t, conn, invalid)
		return counts.rejectedBlocked.Load() > 0
	})
	other := connect("198.51.100.8")
	if _, err := io.WriteString(other, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(other), nil)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("another client of the proxy: got %v, %v", res, err)
	}
	_ = res.Body.Close()
}

// A client of TLS 1.3 can make the server write at any time. That is no response to an unfinished header.
func TestPlainConn_RawWritesAreNoResponses(t *testing.T) {
	t.Parallel()
	limiter := newConnLimiter(Options{})
	limited := &limitedConn{limiter: limiter, Conn: discardConn{}}
	limited.countRead(2*unfinishedBytes, unfinishedBytes)
	if _, err := limited.Write([]byte("a reply to a KeyUpdate")); err != nil || limiter.unfinished.Len() != 1 {
		t.Errorf("got %d unfinished connections, want 1 (%v)", limiter.unfinished.Len(), err)
	}
	if _, err := (&plainConn{Conn: limited, limited: limited}).Write([]byte("a response")); err != nil || limiter.unfinished.Len() != 0 {
		t.Errorf("got %d unfinished connections after a response, want 0 (%v)", limiter.unfinished.Len(), err)
	}
}

type discardConn struct{ net.Conn }

func (discardConn) Write(b []byte) (int, error) { return len(b), nil }
func (discardConn) Close() error                { return nil }

// sendRequests sends maxStreams requests with extra header fields and allows no byte of a response.
func sendRequests(t *testing.T, conn net.Conn, fields []hpack.HeaderField) {
	t.Helper()
	var b, header bytes.Buffer
	framer, encoder := http2.NewFramer(&b, nil), hpack.NewEncoder(&header)
	b.WriteString(http2.ClientPreface)
	err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	fields = slices.Concat([]hpack.HeaderField{
		{Name: ":method", Value: "GET"},
		{Name: ":scheme", Value: "http"},
		{Name: ":authority", Value: "a"},
		{Name: ":path", Value: "/"},
	}, fields)
	for i := range maxStreams {
		header.Reset()
		for _, f := range fields { // the second time, a field takes a byte
			err = errors.Join(err, encoder.WriteField(f))
		}
		err = errors.Join(err, framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: uint32(2*i + 1), BlockFragment: header.Bytes(), EndStream: true, EndHeaders: true, //nolint:gosec // small
		}))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write(b.Bytes()) // fails if the server has closed the connection
	go func() { _, _ = io.Copy(io.Discard, conn) }()
}

// A request without TLS gets a response that explains the cause. The errors of net/http are envelopes with TLS, too.
func TestPlainConn_Errors(t *testing.T) {
	t.Parallel()
	certFile, keyFile := writeCertificate(t, t.TempDir(), "a")
	s := run(t, Options{CertFile: certFile, KeyFile: keyFile})
	for name, tt := range map[string]struct {
		connect func(net.Conn) net.Conn
		request string
		want    string
	}{
		"without TLS": {func(c net.Conn) net.Conn { return c }, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "this port requires TLS"},
		"invalid": {func(c net.Conn) net.Conn {
			return tls.Client(c, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a test certificate
		}, "GET / HTTP/1.1\r\n\r\n", "missing required Host header"},
	} {
		conn := tt.connect(dial(t, s))
		if _, err := io.WriteString(conn, tt.request); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), tt.want) {
			t.Errorf("%s: got %d %s, want 400 with %q", name, res.StatusCode, body, tt.want)
		}
	}
}

// Frames without content cost CPU time, so a flood of them closes the connection.
func TestHTTP2_LimitsFrames(t *testing.T) {
	t.Parallel()
	conn := dial(t, run(t, Options{}))
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&b, nil)
	err := framer.WriteSettings()
	for range 100 {
		err = errors.Join(err, framer.WritePing(true, [8]byte{})) // without a response
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	sent := 100
	_, err = conn.Write(b.Bytes())
	pings := b.Bytes()[b.Len()-100*17:]
	for ; err == nil; sent += 100 {
		_, err = conn.Write(pings)
		if sent > 20*http2budget.MaxCredits {
			t.Fatal("the connection is open after a flood")
		}
	}
}

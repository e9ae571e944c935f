package httpserver

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func TestFrameCounter(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	framer := http2.NewFramer(&b, nil)
	b.WriteString(http2.ClientPreface)
	headers := func(stream uint32) error {
		return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: make([]byte, 300), EndHeaders: true})
	}
	if err := errors.Join(framer.WriteSettings(), headers(1), framer.WriteData(1, false, make([]byte, 1000)), headers(1),
		headers(3), framer.WritePing(false, [8]byte{}),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 7, BlockFragment: make([]byte, 300)}),
		framer.WriteContinuation(7, true, make([]byte, 300)), framer.WriteSettings()); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 7, 512, b.Len()} {
		var c frameCounter
		got, others := 0, 0
		for part := b.Bytes(); len(part) > 0; part = part[min(size, len(part)):] {
			requests, more := c.countFrames(part[:min(size, len(part))])
			got, others = got+requests, others+more
		}
		if got != 3 || others != 5 { // SETTINGS, trailers, PING, CONTINUATION, SETTINGS
			t.Errorf("reads of %d bytes: got %d requests and %d other frames, want 3 and 5", size, got, others)
		}
	}
	var http1 frameCounter
	if got, others := http1.countFrames([]byte("PRI * HTTP/1.1\r\n\r\n" + b.String())); got+others != 0 {
		t.Errorf("HTTP/1: got %d requests and %d other frames, want 0", got, others)
	}
}

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
	testkit.WaitFor(t, "a closed connection", func() bool { return counts.evicted.Load() > 0 })
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

// A client of TLS 1.3 that requests many KeyUpdates and reads none of them would block the server in a write.
func TestLimitedConn_LimitsKeyUpdates(t *testing.T) {
	t.Parallel()
	limited := &limitedConn{limiter: newConnLimiter(Options{}), Conn: discardConn{}, isTLS: true}
	plain := &plainConn{Conn: limited, limited: limited}
	for range 3 * maxKeyUpdates { // the ends of responses
		limited.keyUpdates.Add(1) // as the write of their encrypted form does
		if _, err := plain.Write([]byte(lastChunk)); err != nil {
			t.Fatal(err)
		}
	}
	update := make([]byte, keyUpdateLen)
	for i := range maxKeyUpdates {
		if _, err := limited.Write(update); err != nil {
			t.Fatalf("KeyUpdate %d: %v", i+1, err)
		}
	}
	if _, err := limited.Write(update); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after %d KeyUpdates: got %v, want a closed connection", maxKeyUpdates, err)
	}
}

// Clients may update the window for what they receive, and send some frames more. A flood closes the connection.
func TestFrameBudget(t *testing.T) {
	t.Parallel()
	var b frameBudget
	now := time.Now()
	for i := range 10_000 { // responses of 100 bytes, a request and one frame each
		b.earn(100)
		if !b.spend(1, 1, now) {
			t.Fatalf("no credits after %d responses", i)
		}
	}
	frames := 0
	b = frameBudget{}
	for b.spend(1, 0, now) {
		frames++
	}
	if frames != maxFrameCredits/frameCost {
		t.Errorf("got %d frames at once, want %d", frames, maxFrameCredits/frameCost)
	}
	now = now.Add(time.Second)
	for frames = 0; b.spend(1, 0, now); {
		frames++
	}
	if want := frameCreditsPerSec / frameCost; frames < want-2 || frames > want {
		t.Errorf("got %d frames in the next second, want %d", frames, want)
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
		if sent > 100*maxFrameCredits {
			t.Fatal("the connection is open after a flood")
		}
	}
}

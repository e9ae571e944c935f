package httpserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func run(t *testing.T, o Options) *Server {
	t.Helper()
	o.Name, o.Addr = "server", "127.0.0.1:0"
	if o.Handler == nil {
		o.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
	}
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func dial(t *testing.T, s *Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	return conn
}

func TestInvalidRequests_GetEnvelope(t *testing.T) {
	t.Parallel()
	s := run(t, Options{MaxHeaderBytes: 8 << 10})
	for name, tt := range map[string]struct{ request, code string }{
		"garbage": {"complete garbage\r\n\r\n", "400.invalid-syntax"},
		"no host": {"GET / HTTP/1.1\r\n\r\n", "400.invalid-syntax"},
		"two lengths": {
			"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "400.invalid-syntax",
		},
		"bad header":   {"GET / HTTP/1.1\r\nHost: x\r\nA B: c\r\n\r\n", "400.invalid-syntax"},
		"bad encoding": {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: rot13\r\n\r\n", "400.invalid-syntax"},
		"large header": {
			"GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("x", 20_000) + "\r\n\r\n", "413.too-large",
		},
		"large path":     {"GET /" + strings.Repeat("x", 20_000) + " HTTP/1.1\r\nHost: x\r\n\r\n", "413.too-large"},
		"future version": {"GET / HTTP/7.0\r\nHost: x\r\n\r\n", "400.invalid-syntax"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, s)
			if _, err := io.WriteString(conn, tt.request); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			var e struct{ Error struct{ Code, Detail string } }
			if err := json.Unmarshal(body, &e); err != nil || e.Error.Code != tt.code {
				t.Errorf("%d %q: %v, want %s", res.StatusCode, body, err, tt.code)
			}
		})
	}
}

func TestSlowHeader_ClosesConnection(t *testing.T) {
	t.Parallel()
	s := run(t, Options{ReadHeaderTimeout: 100 * time.Millisecond})
	conn := dial(t, s)
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n") // fails if the server has already closed the connection
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection was not closed")
	}
}

func TestIdleConnection_IsClosed(t *testing.T) {
	t.Parallel()
	s := run(t, Options{IdleTimeout: 50 * time.Millisecond})
	conn := dial(t, s)
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("the connection was not closed: %v", err)
	}
}

func TestPanic_GetsEnvelope(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s := run(t, Options{
		Log:     slog.New(slog.NewTextHandler(&log, nil)),
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") }),
	})
	conn := dial(t, s)
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(out), `"code":"500.unknown"`) || strings.Contains(string(out), "boom") {
		t.Errorf("%q %v", out, err)
	}
}

func TestListenErrors(t *testing.T) {
	t.Parallel()
	s, err := Listen(Options{Name: "server", Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	_, err = Listen(Options{Name: "admin", Addr: s.Addr().String()})
	if err == nil || !strings.Contains(err.Error(), "admin.listen") {
		t.Errorf("a port in use: %v", err)
	}
	if _, err := Listen(Options{Name: "server", Addr: "127.0.0.1:0", CertFile: "/nowhere"}); err == nil {
		t.Error("a certificate without a key was accepted")
	}
}

func TestClose_BeforeRunAndTwice(t *testing.T) {
	t.Parallel()
	s, err := Listen(Options{Addr: "127.0.0.1:0", Handler: http.NotFoundHandler()})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Run(context.Background()); err != nil {
		t.Errorf("Run after Close: %v", err)
	}
}

func TestRun_FinishesRequestsInFlight(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	s, err := Listen(
		Options{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(entered)
			<-leave
			_, _ = io.WriteString(w, "done")
		})},
	)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	conn := dial(t, s)
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-entered
	cancel()
	close(leave)
	out, err := io.ReadAll(conn)
	if err != nil || !strings.HasSuffix(string(out), "done") {
		t.Errorf("%q %v", out, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Unused connections do not delay the shutdown, with and without TLS.
func TestRun_UnusedConnectionsDoNotDelayShutdown(t *testing.T) {
	t.Parallel()
	certFile, keyFile := writeCertificate(t, t.TempDir(), "one")
	for name, o := range map[string]Options{"plain": {}, "tls": {CertFile: certFile, KeyFile: keyFile}} {
		o.Addr, o.Handler, o.Grace = "127.0.0.1:0", http.NotFoundHandler(), time.Hour
		s, err := Listen(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		for range 3 {
			dial(t, s)
		}
		last := dial(t, s)
		if name == "plain" { // the listener has taken all before it
			if _, err := io.WriteString(last, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if _, err := http.ReadResponse(bufio.NewReader(last), nil); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: the stop waits for the grace", name)
		}
	}
}

func TestHijack_ReturnsRawConnectionWithoutDeadlines(t *testing.T) {
	t.Parallel()
	s := run(
		t,
		Options{ReadTimeout: 2 * time.Second, WriteTimeout: 2 * time.Second, Handler: http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				conn, _, err := http.NewResponseController(UnwrapHijack(w)).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = conn.Close() }()
				if _, ok := conn.(*limitedConn); !ok { // which is the socket and its count
					t.Errorf("hijacked a %T", conn)
				}
				b := make([]byte, 1)
				_, err = io.ReadFull(conn, b) // comes after the time-outs
				if err != nil {
					t.Error(err)
				}
				_, _ = conn.Write(b)
			})},
	)
	conn := dial(t, s)
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-time.After(3 * time.Second)
	if _, err := io.WriteString(conn, "y"); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(conn); err != nil || string(out) != "y" {
		t.Errorf("%q %v", out, err)
	}
}

func TestHTTP2OverTLSAndHTTP1(t *testing.T) {
	t.Parallel()
	certFile, keyFile := writeCertificate(t, t.TempDir(), "one")
	s := run(t, Options{CertFile: certFile, KeyFile: keyFile})
	for _, h2 := range []bool{true, false} {
		protocols := new(http.Protocols)
		protocols.SetHTTP2(h2)
		protocols.SetHTTP1(!h2)
		transport := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		res, err := (&http.Client{Transport: transport}).Get("https://" + s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if (string(body) == "HTTP/2.0") != h2 {
			t.Errorf("h2 %v: %s", h2, body)
		}
		transport.CloseIdleConnections()
	}
}

// If an HTTP/2 client disappears without closing its connection, its handlers end. The kernel would detect it only
// after 15 minutes.
func TestHTTP2_LostClient(t *testing.T) {
	t.Parallel()
	began, left := make(chan struct{}), make(chan struct{})
	s := run(
		t,
		Options{PingInterval: 50 * time.Millisecond, PongTimeout: 50 * time.Millisecond, Handler: http.HandlerFunc(
			func(_ http.ResponseWriter, r *http.Request) {
				close(began)
				<-r.Context().Done()
				close(left)
			})},
	)
	const (
		settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
		get      = "\x00\x00\x06\x01\x05\x00\x00\x00\x01" + "\x82\x86\x84\x41\x01h" // GET http://h/
	)
	if _, err := io.WriteString(dial(t, s), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+settings+get); err != nil {
		t.Fatal(err)
	}
	<-began
	select {
	case <-left:
	case <-time.After(testkit.Patience):
		t.Error("the client answers no ping, and its handler goes on")
	}
}

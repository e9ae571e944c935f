package httpclient

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// startScriptedServer starts a server that calls serve for each connection, with its number from 1, and then closes the
// connection. conns returns the number of connections.
func startScriptedServer(
	t *testing.T, serve func(n int, conn net.Conn, in *bufio.Reader),
) (target *Target, conns func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var count atomic.Int64
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n := int(count.Add(1))
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				serve(n, conn, bufio.NewReader(conn))
			})
		}
	})
	if target, err = ParseTarget("http://"+l.Addr().String()+"/s3cret", localGuard(t)); err != nil {
		t.Fatal(err)
	}
	return target, func() int { return int(count.Load()) }
}

// readRequest reads one complete request and reports whether there was one.
func readRequest(in *bufio.Reader) bool {
	req, err := http.ReadRequest(in)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

func newTestClient(t *testing.T) *Client {
	t.Helper()
	c := NewClient(localGuard(t), nil)
	t.Cleanup(c.Close)
	return c
}

const okResponse = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

type responseTest struct {
	text    string // the response of the server
	closes  bool   // the server closes the connection after it
	status  int
	body    string
	cut     bool   // the body is truncated
	problem string // part of the error
	kept    bool   // the connection is reused
}

var responseTests = map[string]responseTest{
	"content length": {text: okResponse, status: 200, body: "ok", kept: true},
	"no body":        {text: "HTTP/1.1 204 No Content\r\n\r\n", status: 204, kept: true},
	"empty body":     {text: "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", status: 500, kept: true},
	"chunks": {
		text: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"1;x=y\r\no\r\n1\r\nk\r\n0\r\nT: r\r\n\r\n",
		status: 200, body: "ok", kept: true,
	},
	"early hints": {
		text:   "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + okResponse,
		status: 200, body: "ok", kept: true,
	},
	"HTTP/1.0": {text: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok"},
	"HTTP/1.0 keep-alive": {
		text:   "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
		status: 200, body: "ok", kept: true,
	},
	"connection close": {
		text:   "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
		status: 200, body: "ok",
	},
	"body ends with the connection": {text: "HTTP/1.1 200 OK\r\n\r\nok", closes: true, status: 200, body: "ok"},
	"two responses": {
		text:   okResponse + "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
		status: 200, body: "ok",
	},
	"switching protocols": {
		text:    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
		problem: "status 101",
	},
	"partial body": {
		text:   "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nok",
		closes: true, status: 200, body: "ok", cut: true,
	},
	"partial chunk": {
		text:   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok",
		closes: true, status: 200, body: "ok", cut: true,
	},
	"invalid chunks": {
		text:   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok",
		status: 200, cut: true,
	},
	"long body": {
		text:   "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 1_000_000),
		status: 200, body: strings.Repeat("x", MaxResponseBody), cut: true,
	},
	"no response":    {closes: true, problem: "closed the connection without a response"},
	"partial header": {text: "HTTP/1.1 200 OK\r\nX: y\r\n", closes: true, problem: "unexpected EOF"},
	"invalid status": {
		text:   "HTTP/1.1 099 Odd\r\nContent-Length: 38\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		status: 99, body: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
	},
	"not HTTP": {text: "220 smtp.example.com ESMTP\r\n\r\n", problem: "malformed HTTP"},
	"two lengths": {
		text:    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk",
		problem: "Content-Length",
	},
	"long header": {
		text:    "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 10<<20) + "\r\n\r\n",
		problem: "longer than 65536 bytes",
	},
	"endless early hints": {
		text:    strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 100_000),
		problem: "longer than 65536 bytes",
	},
}

// Both of two requests receive the same response. If the connection is reusable, the second request uses it.
func TestPost_Responses(t *testing.T) {
	t.Parallel()
	for name, test := range responseTests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target, conns := startScriptedServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
				for readRequest(in) {
					if _, err := io.WriteString(conn, test.text); err != nil || test.closes {
						return
					}
				}
			})
			c := newTestClient(t)
			for range 2 {
				resp, err := c.Post(t.Context(), target, nil, []byte("{}"))
				switch {
				case test.problem != "":
					if err == nil || !strings.Contains(err.Error(), test.problem) ||
						strings.Contains(err.Error(), "s3cret") {
						t.Errorf("got error %v, want %s", err, test.problem)
					}
				case err != nil:
					t.Error(err)
				case resp.Status != test.status || resp.Body != test.body || resp.Truncated != test.cut:
					t.Errorf("got %d %.20q, truncated %v", resp.Status, resp.Body, resp.Truncated)
				}
			}
			if kept := conns() == 1; kept != test.kept {
				t.Errorf("got %d connections, want reuse %v", conns(), test.kept)
			}
		})
	}
}

// An error shows a malformed response in quotes. Quoting changes the spelling of a secret, which must still be
// redacted.
func TestPost_RedactsQuotedSecrets(t *testing.T) {
	t.Parallel()
	target, _ := startScriptedServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
		line, _ := in.ReadString('\n')
		_, _ = io.WriteString(conn, line)
	})
	target, err := ParseTarget(target.URL().String()+`?key=ab"cd\ef`, localGuard(t))
	if err != nil {
		t.Fatal(err)
	}
	_, err = newTestClient(t).Post(t.Context(), target, nil, []byte("{}"))
	if err == nil || strings.Contains(err.Error(), "cd") {
		t.Errorf("got error %v, want one without secrets", err)
	}
	if got := target.Secrets().Text(`{"url": "/hook?key=ab\"cd\\ef"}`); strings.Contains(got, "cd") {
		t.Errorf("Redact() = %s, want the secret redacted", got)
	}
}

// Only a small part of a 100 MiB response is read. The server cannot send the rest.
func TestPost_ResponseOf100MiB(t *testing.T) {
	t.Parallel()
	const size = 100 << 20
	unsent := make(chan int, 1)
	target, _ := startScriptedServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
		readRequest(in)
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 500 Oops\r\nContent-Length: %d\r\n\r\n", size)
		n, piece := size, make([]byte, 1<<20)
		for n > 0 {
			k, err := conn.Write(piece)
			if n -= k; err != nil {
				break
			}
		}
		unsent <- n
	})
	resp, err := newTestClient(t).Post(t.Context(), target, nil, []byte("{}"))
	if err != nil || !resp.Truncated || len(resp.Body) != MaxResponseBody {
		t.Fatalf("got %+v, %v", resp, err)
	}
	if n := <-unsent; n < size/2 {
		t.Errorf("got %d unsent bytes, want at least %d", n, size/2)
	}
}

// waitForIdleData waits until data or the end of the idle connection has arrived.
func waitForIdleData(t *testing.T, c *Client) {
	t.Helper()
	testkit.WaitFor(t, "data or the end of the idle connection", func() bool {
		c.transport.idle.mu.Lock()
		defer c.transport.idle.mu.Unlock()
		return len(c.transport.idle.conns) == 0 || !c.transport.idle.conns[0].stillIdle()
	})
}

// A connection that ended or received data while it was idle is not reused.
func TestPost_StaleConnection(t *testing.T) {
	t.Parallel()
	for name, unsolicited := range map[string]string{
		"closed": "", "unsolicited response": "HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			idle := make(chan struct{})
			target, conns := startScriptedServer(t, func(n int, conn net.Conn, in *bufio.Reader) {
				readRequest(in)
				_, _ = io.WriteString(conn, okResponse)
				if n == 1 {
					<-idle
					if _, _ = io.WriteString(conn, unsolicited); unsolicited != "" {
						_, _ = in.ReadByte()
					}
				}
			})
			c := newTestClient(t)
			for n := 1; n <= 2; n++ {
				resp, err := c.Post(t.Context(), target, nil, []byte("{}"))
				if err != nil || resp.Status != http.StatusOK || conns() != n {
					t.Fatalf("post %d: got %+v, %v over %d connections", n, resp, err, conns())
				}
				if n == 1 {
					close(idle)
					waitForIdleData(t, c)
				}
			}
		})
	}
}

// The server may have accepted a request that was written. Only the retry schedule repeats it.
func TestPost_WrittenRequestIsNotRepeated(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	target, conns := startScriptedServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
		for readRequest(in) {
			if requests.Add(1) == 2 {
				return
			}
			_, _ = io.WriteString(conn, okResponse)
		}
	})
	c := newTestClient(t)
	_, first := c.Post(t.Context(), target, nil, []byte("{}"))
	_, second := c.Post(t.Context(), target, nil, []byte("{}"))
	if first != nil || !errors.Is(second, io.EOF) || requests.Load() != 2 || conns() != 1 {
		t.Errorf("got %v and %v: %d requests over %d connections", first, second, requests.Load(), conns())
	}
}

// A request can demand a new connection, which later requests may use.
func TestPost_NewConnection(t *testing.T) {
	t.Parallel()
	target, conns := startScriptedServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
		for readRequest(in) {
			_, _ = io.WriteString(conn, okResponse)
		}
	})
	c := newTestClient(t)
	for n, isNew := range []bool{false, false, true, false} {
		p := &Request{Head: NewRequestTemplate(target.URL(), nil), Body: []byte("{}"), NewConnection: isNew}
		resp, err := c.transport.Post(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if want := 1 + n/2; conns() != want {
			t.Errorf("request %d: got %d connections, want %d", n, conns(), want)
		}
	}
}

// breakingConn fails in the second request after maxBytes bytes.
type breakingConn struct {
	*net.TCPConn
	writes, maxBytes int
}

func (c *breakingConn) Write(p []byte) (int, error) {
	if c.writes++; c.writes == 1 {
		return c.TCPConn.Write(p)
	}
	n, _ := c.TCPConn.Write(p[:c.maxBytes])
	return n, net.ErrClosed
}

// If a write fails before the first byte, the complete request is sent over another connection. If a part was written,
// it is not repeated.
func TestPost_WriteFails(t *testing.T) {
	t.Parallel()
	for maxBytes, want := range map[int]string{0: "one two", 40: "one"} {
		var bodies []string
		target, conns := startScriptedServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
			for {
				req, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				text, _ := io.ReadAll(req.Body)
				bodies = append(bodies, string(text))
				_, _ = io.WriteString(conn, okResponse)
			}
		})
		c := newTestClient(t)
		dial := c.transport.dialer
		c.transport.dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if tcp, ok := conn.(*net.TCPConn); ok {
				return &breakingConn{TCPConn: tcp, maxBytes: maxBytes}, err
			}
			return conn, err
		}
		_, first := c.Post(t.Context(), target, nil, []byte("one"))
		_, second := c.Post(t.Context(), target, nil, []byte("two"))
		if first != nil || (second == nil) != (maxBytes == 0) {
			t.Errorf("%d bytes: got errors %v, %v", maxBytes, first, second)
		}
		if got := strings.Join(bodies, " "); got != want || conns() != strings.Count(want, " ")+1 {
			t.Errorf("%d bytes: got %q over %d connections, want %q", maxBytes, got, conns(), want)
		}
	}
}

// An idle connection is closed after its timeout, and at once after CloseIdleConnections.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	ended := make(chan int, 2)
	inFlight := make(chan struct{})
	target, _ := startScriptedServer(t, func(n int, conn net.Conn, in *bufio.Reader) {
		for readRequest(in) {
			if n == 2 {
				inFlight <- struct{}{}
				<-inFlight
			}
			_, _ = io.WriteString(conn, okResponse)
		}
		ended <- n
	})
	c := newTestClient(t)
	c.transport.IdleConnTimeout = time.Millisecond
	if _, err := c.Post(t.Context(), target, nil, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if n := <-ended; n != 1 {
		t.Errorf("got connection %d as the first to end, want 1", n)
	}
	c.transport.IdleConnTimeout = time.Hour
	go func() {
		<-inFlight
		c.Close()
		inFlight <- struct{}{}
	}()
	if _, err := c.Post(t.Context(), target, nil, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	<-ended
}

// Concurrent requests never receive each other's responses. They need at most one connection each.
func TestPost_Concurrent(t *testing.T) {
	t.Parallel()
	const posters = 16
	target, conns := startScriptedServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			text, _ := io.ReadAll(req.Body)
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		}
	})
	c := newTestClient(t)
	var wg sync.WaitGroup
	for p := range posters {
		wg.Go(func() {
			for n := range 50 {
				text := fmt.Sprint(p, "-", n)
				if resp, err := c.Post(t.Context(), target, nil, []byte(text)); err != nil || resp.Body != text {
					t.Errorf("%s: got %+v, %v", text, resp, err)
				}
			}
		})
	}
	wg.Wait()
	if conns() > posters {
		t.Errorf("got %d connections, want at most %d", conns(), posters)
	}
}

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

// script plays a server: serve is called for each connection, with its number from 1, and the connection closed behind it.
func script(t *testing.T, serve func(n int, conn net.Conn, in *bufio.Reader)) (target *Target, conns func() int) {
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
	if target, err = ParseTarget("http://"+l.Addr().String()+"/s3cret", local(t)); err != nil {
		t.Fatal(err)
	}
	return target, func() int { return int(count.Load()) }
}

// taken reads one request to its end and tells whether there was one.
func taken(in *bufio.Reader) bool {
	req, err := http.ReadRequest(in)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

func client(t *testing.T) *Client {
	t.Helper()
	c := NewClient(local(t), nil)
	t.Cleanup(c.Close)
	return c
}

const fine = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// Each answer is given to every request; where the connection was kept, the second post came over it.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]struct {
		text    string
		shut    bool // the server closes behind it
		status  int
		body    string
		cut     bool
		problem string
		kept    bool
	}{
		"a length":            {text: fine, status: 200, body: "ok", kept: true},
		"no body":             {text: "HTTP/1.1 204 No Content\r\n\r\n", status: 204, kept: true},
		"an empty body":       {text: "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", status: 500, kept: true},
		"chunks":              {text: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\no\r\n1\r\nk\r\n0\r\nT: r\r\n\r\n", status: 200, body: "ok", kept: true},
		"early hints":         {text: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + fine, status: 200, body: "ok", kept: true},
		"HTTP/1.0":            {text: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok"},
		"HTTP/1.0 that stays": {text: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok", kept: true},
		"a last answer":       {text: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok"},
		"until it closes":     {text: "HTTP/1.1 200 OK\r\n\r\nok", shut: true, status: 200, body: "ok"},
		"more than one":       {text: fine + "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", status: 200, body: "ok"},
		"another protocol":    {text: "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", status: 101},
		"half a body":         {text: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nok", shut: true, status: 200, body: "ok", cut: true},
		"half a chunk":        {text: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok", shut: true, status: 200, body: "ok", cut: true},
		"bad chunks":          {text: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok", status: 200, cut: true},
		"a long body":         {text: "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 1_000_000), status: 200, body: strings.Repeat("x", MaxResponseBody), cut: true},
		"nothing":             {shut: true, problem: "closed the connection without an answer"},
		"half a header":       {text: "HTTP/1.1 200 OK\r\nX: y\r\n", shut: true, problem: "unexpected EOF"},
		"no status":           {text: "HTTP/1.1 099 Odd\r\nContent-Length: 38\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", status: 99, body: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		"garbage":             {text: "220 smtp.example.com ESMTP\r\n\r\n", problem: "malformed HTTP"},
		"two lengths":         {text: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk", problem: "Content-Length"},
		"a huge header":       {text: "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 10<<20) + "\r\n\r\n", problem: "longer than 65536 bytes"},
		"early hints forever": {text: strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 100_000), problem: "longer than 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target, conns := script(t, func(_ int, conn net.Conn, in *bufio.Reader) {
				for taken(in) {
					if _, err := io.WriteString(conn, a.text); err != nil || a.shut {
						return
					}
				}
			})
			c := client(t)
			for range 2 {
				answer, err := c.Post(t.Context(), target, nil, []byte("{}"))
				switch {
				case a.problem != "":
					if err == nil || !strings.Contains(err.Error(), a.problem) || strings.Contains(err.Error(), "s3cret") {
						t.Errorf("got %v, want %s", err, a.problem)
					}
				case err != nil:
					t.Error(err)
				case answer.Status != a.status || answer.Body != a.body || answer.Truncated != a.cut:
					t.Errorf("got %d %.20q, cut %v", answer.Status, answer.Body, answer.Truncated)
				}
			}
			if kept := conns() == 1; kept != a.kept {
				t.Errorf("%d connections, kept %v", conns(), a.kept)
			}
		})
	}
}

// What no HTTP server says is shown in quotes, in which a secret is spelled another way.
func TestEcho(t *testing.T) {
	t.Parallel()
	target, _ := script(t, func(_ int, conn net.Conn, in *bufio.Reader) {
		line, _ := in.ReadString('\n')
		_, _ = io.WriteString(conn, line)
	})
	target, err := ParseTarget(target.URL().String()+`?key=ab"cd\ef`, local(t))
	if err != nil {
		t.Fatal(err)
	}
	_, err = client(t).Post(t.Context(), target, nil, []byte("{}"))
	if err == nil || strings.Contains(err.Error(), "cd") {
		t.Errorf("got %v", err)
	}
	if said := target.Redact(`{"url": "/hook?key=ab\"cd\\ef"}`); strings.Contains(said, "cd") {
		t.Errorf("scrubbed to %s", said)
	}
}

// A hundred MiB cost what is read of them: the server can not get rid of the rest.
func TestAnswerOf100MiB(t *testing.T) {
	t.Parallel()
	const size = 100 << 20
	left := make(chan int, 1)
	target, _ := script(t, func(_ int, conn net.Conn, in *bufio.Reader) {
		taken(in)
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 500 Oops\r\nContent-Length: %d\r\n\r\n", size)
		n, piece := size, make([]byte, 1<<20)
		for n > 0 {
			k, err := conn.Write(piece)
			if n -= k; err != nil {
				break
			}
		}
		left <- n
	})
	answer, err := client(t).Post(t.Context(), target, nil, []byte("{}"))
	if err != nil || !answer.Truncated || len(answer.Body) != MaxResponseBody {
		t.Fatalf("got %+v, %v", answer, err)
	}
	if n := <-left; n < size/2 {
		t.Errorf("all but %d bytes were taken", n)
	}
}

// noticed waits until something has come over the idle connection.
func noticed(t *testing.T, c *Client) {
	t.Helper()
	testkit.WaitFor(t, "the idle connection is no longer quiet", func() bool {
		c.transport.idle.mu.Lock()
		defer c.transport.idle.mu.Unlock()
		return len(c.transport.idle.conns) == 0 || !c.transport.idle.conns[0].stillIdle()
	})
}

// A connection that ended while it was idle, or on which something came, carries no request any more.
func TestStaleConnection(t *testing.T) {
	t.Parallel()
	for name, unasked := range map[string]string{
		"closed": "", "an answer that nobody asked for": "HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			idle := make(chan struct{})
			target, conns := script(t, func(n int, conn net.Conn, in *bufio.Reader) {
				taken(in)
				_, _ = io.WriteString(conn, fine)
				if n == 1 {
					<-idle
					if _, _ = io.WriteString(conn, unasked); unasked != "" {
						_, _ = in.ReadByte()
					}
				}
			})
			c := client(t)
			for n := 1; n <= 2; n++ {
				answer, err := c.Post(t.Context(), target, nil, []byte("{}"))
				if err != nil || answer.Status != http.StatusOK || conns() != n {
					t.Fatalf("post %d: %+v, %v over %d connections", n, answer, err, conns())
				}
				if n == 1 {
					close(idle)
					noticed(t, c)
				}
			}
		})
	}
}

// A post that was written may have been taken, so that it is for the schedule to repeat it.
func TestWrittenIsNotRepeated(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	target, conns := script(t, func(_ int, conn net.Conn, in *bufio.Reader) {
		for taken(in) {
			if requests.Add(1) == 2 {
				return
			}
			_, _ = io.WriteString(conn, fine)
		}
	})
	c := client(t)
	_, first := c.Post(t.Context(), target, nil, []byte("{}"))
	_, second := c.Post(t.Context(), target, nil, []byte("{}"))
	if first != nil || !errors.Is(second, io.EOF) || requests.Load() != 2 || conns() != 1 {
		t.Errorf("got %v and %v: %d requests over %d connections", first, second, requests.Load(), conns())
	}
}

// breaking is a connection that takes no more than some bytes of its second request.
type breaking struct {
	*net.TCPConn
	writes, most int
}

func (c *breaking) Write(p []byte) (int, error) {
	if c.writes++; c.writes == 1 {
		return c.TCPConn.Write(p)
	}
	n, _ := c.TCPConn.Write(p[:c.most])
	return n, net.ErrClosed
}

// What was not written at all is sent over another connection, with its whole body; what was in part is not.
func TestBrokenWhileWriting(t *testing.T) {
	t.Parallel()
	for most, want := range map[int]string{0: "one two", 40: "one"} {
		var bodies []string
		target, conns := script(t, func(_ int, conn net.Conn, in *bufio.Reader) {
			for {
				req, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				text, _ := io.ReadAll(req.Body)
				bodies = append(bodies, string(text))
				_, _ = io.WriteString(conn, fine)
			}
		})
		c := client(t)
		dial := c.transport.DialContext
		c.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if tcp, ok := conn.(*net.TCPConn); ok {
				return &breaking{TCPConn: tcp, most: most}, err
			}
			return conn, err
		}
		_, first := c.Post(t.Context(), target, nil, []byte("one"))
		_, second := c.Post(t.Context(), target, nil, []byte("two"))
		if got := strings.Join(bodies, " "); first != nil || (second == nil) != (most == 0) || got != want || conns() != strings.Count(want, " ")+1 {
			t.Errorf("%d bytes: got %q over %d connections, %v, %v", most, got, conns(), first, second)
		}
	}
}

// A connection is kept for a while and no longer, and after CloseIdleConnections not at all.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	ended := make(chan int, 2)
	inHand := make(chan struct{})
	target, _ := script(t, func(n int, conn net.Conn, in *bufio.Reader) {
		for taken(in) {
			if n == 2 {
				inHand <- struct{}{}
				<-inHand
			}
			_, _ = io.WriteString(conn, fine)
		}
		ended <- n
	})
	c := client(t)
	c.transport.IdleConnTimeout = time.Millisecond
	if _, err := c.Post(t.Context(), target, nil, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if n := <-ended; n != 1 {
		t.Errorf("connection %d ended first", n)
	}
	c.transport.IdleConnTimeout = time.Hour
	go func() {
		<-inHand
		c.Close()
		inHand <- struct{}{}
	}()
	if _, err := c.Post(t.Context(), target, nil, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	<-ended
}

// Many at once never get each other's answers, and need no more connections than they are.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const posters = 16
	target, conns := script(t, func(_ int, conn net.Conn, in *bufio.Reader) {
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			text, _ := io.ReadAll(req.Body)
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		}
	})
	c := client(t)
	var wg sync.WaitGroup
	for p := range posters {
		wg.Go(func() {
			for n := range 50 {
				text := fmt.Sprint(p, "-", n)
				if answer, err := c.Post(t.Context(), target, nil, []byte(text)); err != nil || answer.Body != text {
					t.Errorf("%s: %+v, %v", text, answer, err)
				}
			}
		})
	}
	wg.Wait()
	if conns() > posters {
		t.Errorf("%d connections", conns())
	}
}

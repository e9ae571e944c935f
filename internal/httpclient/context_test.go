package httpclient

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// The end of the context ends a request in every phase.
func TestPost_ContextEnds(t *testing.T) {
	t.Parallel()
	drip := func(conn net.Conn, text string) {
		for i := 0; ; i++ {
			if _, err := io.WriteString(conn, text[i%len(text):i%len(text)+1]); err != nil {
				return
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	for name, serve := range map[string]func(conn net.Conn){
		"no response": func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) },
		"slow header": func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
			drip(conn, "A: b\r\n")
		},
		"slow body": func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 500 Oops\r\nContent-Length: 10000000\r\n\r\n")
			drip(conn, "x")
		},
		"half a body": func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 500 Oops\r\nContent-Length: 100\r\n\r\nhalf")
			_, _ = conn.Read(make([]byte, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBody := strings.HasSuffix(name, "body")
			target, _ := startScriptedServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
				if readRequest(in) {
					serve(conn)
				}
			})
			c := newTestClient(t)
			timeoutCtx, cancelTimeout := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancelTimeout()
			cancelCtx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if inBody { // a timer could expire before the header is read
				expiring, expire := context.WithCancel(t.Context())
				timeoutCtx = expiredContext{expiring}
				callInBody(c, expire, cancel)
			}
			resp, err := c.Post(timeoutCtx, target, nil, []byte("{}"))
			if inBody && (err != nil || !resp.Truncated) || !inBody && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("at the deadline: got %+v, %v", resp, err)
			}
			if !inBody {
				time.AfterFunc(10*time.Millisecond, cancel)
			}
			resp, err = c.Post(cancelCtx, target, nil, []byte("{}"))
			if inBody && (err != nil || !resp.Truncated) || !inBody && !errors.Is(err, context.Canceled) {
				t.Errorf("when canceled: got %+v, %v", resp, err)
			}
		})
	}
}

// expiredContext returns context.DeadlineExceeded after the wrapped context was canceled.
type expiredContext struct{ context.Context }

func (e expiredContext) Err() error {
	if e.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// callInBody makes each new connection call the next of funcs when the client reads the body a second time. The first
// read returns the header and the start of the body.
func callInBody(c *Client, funcs ...func()) {
	dial := c.transport.dialer
	c.transport.dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		tcp, ok := conn.(*net.TCPConn)
		if !ok || len(funcs) == 0 {
			return conn, err
		}
		call := funcs[0]
		funcs = funcs[1:]
		return &bodyHookConn{TCPConn: tcp, call: call}, err
	}
}

type bodyHookConn struct {
	*net.TCPConn
	call func()
	read []byte
}

func (c *bodyHookConn) Read(p []byte) (int, error) {
	if _, body, _ := bytes.Cut(c.read, []byte("\r\n\r\n")); len(body) > 0 {
		c.call()
	}
	n, err := c.TCPConn.Read(p)
	c.read = append(c.read, p[:n]...)
	return n, err
}

func TestPost_ContextEndsDuringDial(t *testing.T) {
	t.Parallel()
	c := newTestClient(t)
	c.transport.dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Err: errors.New("operation was canceled")}
	}
	target, err := ParseTarget("http://127.0.0.1:1/s3cret", localGuard(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the sink was removed")
	time.AfterFunc(time.Millisecond, func() { cancel(cause) })
	if _, err := c.Post(ctx, target, nil, nil); !errors.Is(err, cause) {
		t.Errorf("got error %v, want %v", err, cause)
	}
}

// A response that has arrived at the deadline counts, even if it is read later.
func TestPost_ResponseArrivesAtDeadline(t *testing.T) {
	t.Parallel()
	responded := make(chan struct{})
	target, _ := startScriptedServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
		if readRequest(in) {
			_, _ = io.WriteString(conn, okResponse)
			close(responded)
			_, _ = in.ReadByte()
		}
	})
	c := newTestClient(t)
	ctx, expire := context.WithCancel(t.Context())
	dial := c.transport.dialer
	c.transport.dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			return conn, err
		}
		return &lateConn{TCPConn: tcp, responded: responded, expire: expire, interrupted: make(chan struct{})}, err
	}
	resp, err := c.Post(expiredContext{ctx}, target, nil, []byte("{}"))
	if err != nil || resp.Status != 200 || resp.Body != "ok" || resp.Truncated {
		t.Errorf("got %+v, %v", resp, err)
	}
}

// lateConn reads a response only after it has arrived and the deadline has interrupted the connection.
type lateConn struct {
	*net.TCPConn
	responded, interrupted chan struct{}
	expire                 func()
	once                   sync.Once
}

func (c *lateConn) Read(p []byte) (int, error) {
	<-c.responded
	c.expire()
	<-c.interrupted
	return c.TCPConn.Read(p)
}

func (c *lateConn) SetReadDeadline(at time.Time) error {
	defer c.once.Do(func() { close(c.interrupted) })
	return c.TCPConn.SetReadDeadline(at.Add(time.Minute)) // a busy machine may read later than the grace allows
}

func (c *lateConn) Close() error {
	defer c.once.Do(func() { close(c.interrupted) })
	return c.TCPConn.Close()
}

package httpclient

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// Whatever an attempt waits for, the end of its context ends it.
func TestEndOfContext(t *testing.T) {
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
		"silence": func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) },
		"a dripping header": func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
			drip(conn, "A: b\r\n")
		},
		"a dripping body": func(conn net.Conn) {
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
			target, _ := script(t, func(_ int, conn net.Conn, in *bufio.Reader) {
				if taken(in) {
					serve(conn)
				}
			})
			c := client(t)
			late, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if inBody { // where a timer might be faster than the header
				ended, end := context.WithCancel(t.Context())
				late = overdue{ended}
				endInBody(c, end, stop)
			}
			answer, err := c.Post(late, target, nil, []byte("{}"))
			if inBody && (err != nil || !answer.Truncated) || !inBody && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("at the deadline: %+v, %v", answer, err)
			}
			if !inBody {
				time.AfterFunc(10*time.Millisecond, stop)
			}
			answer, err = c.Post(ctx, target, nil, []byte("{}"))
			if inBody && (err != nil || !answer.Truncated) || !inBody && !errors.Is(err, context.Canceled) {
				t.Errorf("when cancelled: %+v, %v", answer, err)
			}
		})
	}
}

// overdue is a context that ends as at a deadline, whenever it is cancelled.
type overdue struct{ context.Context }

func (o overdue) Err() error {
	if o.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// endInBody lets each connection call one of ends when more is read of it than the header and what came with that.
func endInBody(c *Client, ends ...func()) {
	dial := c.transport.DialContext
	c.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		tcp, ok := conn.(*net.TCPConn)
		if !ok || len(ends) == 0 {
			return conn, err
		}
		end := ends[0]
		ends = ends[1:]
		return &endingInBody{TCPConn: tcp, end: end}, err
	}
}

type endingInBody struct {
	*net.TCPConn
	end  func()
	read []byte
}

func (c *endingInBody) Read(p []byte) (int, error) {
	if _, body, _ := bytes.Cut(c.read, []byte("\r\n\r\n")); len(body) > 0 {
		c.end()
	}
	n, err := c.TCPConn.Read(p)
	c.read = append(c.read, p[:n]...)
	return n, err
}

func TestEndOfContextWhileDialling(t *testing.T) {
	t.Parallel()
	c := client(t)
	c.transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Err: errors.New("operation was canceled")}
	}
	target, err := ParseTarget("http://127.0.0.1:1/s3cret", local(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the sink was removed")
	time.AfterFunc(time.Millisecond, func() { cancel(why) })
	if _, err := c.Post(ctx, target, nil, nil); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

package egress

import (
	"bufio"
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
			answer, err := c.Post(late, target, nil, []byte("{}"))
			if inBody && (err != nil || !answer.Cut) || !inBody && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("at the deadline: %+v, %v", answer, err)
			}
			ctx, stop := context.WithCancel(t.Context())
			time.AfterFunc(10*time.Millisecond, stop)
			answer, err = c.Post(ctx, target, nil, []byte("{}"))
			if inBody && (err != nil || !answer.Cut) || !inBody && !errors.Is(err, context.Canceled) {
				t.Errorf("when cancelled: %+v, %v", answer, err)
			}
		})
	}
}

func TestEndOfContextWhileDialling(t *testing.T) {
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

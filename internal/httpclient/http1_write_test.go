package httpclient

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// byScheme runs a test with a server that script plays, by http and by https, and a client that trusts it.
func byScheme(t *testing.T, serve func(conn net.Conn, in *bufio.Reader), test func(t *testing.T, c *Client, target *Target, conns func() int)) {
	srv := httptest.NewUnstartedServer(nil)
	srv.StartTLS()
	own, roots := &tls.Config{Certificates: srv.TLS.Certificates, MinVersion: tls.VersionTLS12}, x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	srv.Close()
	t.Run("http", func(t *testing.T) {
		target, conns := script(t, func(_ int, conn net.Conn, in *bufio.Reader) { serve(conn, in) })
		c := client(t)
		c.transport.drainTime = time.Minute // however slow the machine is
		test(t, c, target, conns)
	})
	t.Run("https", func(t *testing.T) {
		target, conns := script(t, func(_ int, conn net.Conn, _ *bufio.Reader) {
			secure := tls.Server(conn, own)
			serve(secure, bufio.NewReader(secure))
		})
		target, err := ParseTarget("https://"+target.Host()+"/s3cret", local(t))
		if err != nil {
			t.Fatal(err)
		}
		c := NewClient(local(t), &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots})
		t.Cleanup(c.Close)
		c.transport.drainTime = time.Minute
		host := target.Host()
		c.transport.http1Host.Store(&host)
		test(t, c, target, conns)
	})
}

// echo answers each request with the length of its body and a sum of it.
func echo(conn net.Conn, in *bufio.Reader) {
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		text, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		said := sum(text)
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(said), said)
	}
}

func sum(text []byte) string {
	odd := 0
	for i, b := range text {
		odd = odd*31 + int(b) + i
	}
	return fmt.Sprint(len(text), " ", odd)
}

// long is a body of which no piece can be taken for another.
func long(size int) []byte {
	text := make([]byte, size)
	for i := range text {
		text[i] = byte(i*7 + i>>8 + i>>16)
	}
	return text
}

// A body of any length arrives whole, and leaves a connection that can be used again.
func TestLengths(t *testing.T) {
	t.Parallel()
	byScheme(t, echo, func(t *testing.T, c *Client, target *Target, conns func() int) {
		for _, size := range []int{0, 1, socketBufferBytes, socketBufferBytes + 1, 100_000, maxInlineBody, maxInlineBody + 1, 8 << 20, 100, 60_000} {
			body := long(size)
			answer, err := c.Post(t.Context(), target, nil, body)
			if err != nil || answer.Status != http.StatusOK || answer.Body != sum(body) {
				t.Fatalf("%d bytes: %+v, %v", size, answer, err)
			}
		}
		if conns() != 1 {
			t.Errorf("%d connections", conns())
		}
	})
}

// Long bodies at once, on connections that are used again, reach their receiver unmixed.
func TestConcurrentLongBodies(t *testing.T) {
	t.Parallel()
	const posters = 8
	byScheme(t, echo, func(t *testing.T, c *Client, target *Target, conns func() int) {
		var wg sync.WaitGroup
		for p := range posters {
			wg.Go(func() {
				for n := range 10 {
					body := long(socketBufferBytes + 1 + 150_000*p + n)
					if answer, err := c.Post(t.Context(), target, nil, body); err != nil || answer.Body != sum(body) {
						t.Errorf("%d bytes: %+v, %v", len(body), answer, err)
					}
				}
			})
		}
		wg.Wait()
		if conns() > posters {
			t.Errorf("%d connections", conns())
		}
	})
}

// A receiver that says yes before it has read gets all of the body, although it takes its time.
func TestAnswerFarAhead(t *testing.T) {
	t.Parallel()
	const size = 20 << 20
	read := make(chan int64, 1)
	byScheme(t, func(conn net.Conn, in *bufio.Reader) {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
		time.Sleep(4 * finalReadTimeout)
		n, _ := io.Copy(io.Discard, req.Body)
		read <- n
	}, func(t *testing.T, c *Client, target *Target, _ func() int) {
		if answer, err := c.Post(t.Context(), target, nil, long(size)); err != nil || answer.Status != http.StatusAccepted {
			t.Errorf("%+v, %v", answer, err)
		}
		if n := <-read; n != size {
			t.Errorf("the receiver read %d bytes of %d", n, size)
		}
	})
}

// A receiver that has read enough answers before a body has come, short or long. A connection on which the rest of a body
// would have to follow is not used again.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	for _, size := range []int{100, socketBufferBytes, 20 << 20} {
		done := make(chan struct{})
		serve := func(conn net.Conn, in *bufio.Reader) {
			if _, err := http.ReadRequest(in); err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
			}
			<-done
		}
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			byScheme(t, serve, func(t *testing.T, c *Client, target *Target, conns func() int) {
				t.Cleanup(func() { done <- struct{}{} })
				answer, err := c.Post(t.Context(), target, nil, make([]byte, size))
				if err != nil || answer.Status != http.StatusRequestEntityTooLarge || answer.Body != "no" {
					t.Errorf("%d bytes: %+v, %v", size, answer, err)
				}
				c.transport.idle.mu.Lock()
				defer c.transport.idle.mu.Unlock()
				if kept := len(c.transport.idle.conns); size > socketBufferBytes && kept != 0 || conns() != 1 {
					t.Errorf("%d bytes: %d idle connections of %d", size, kept, conns())
				}
			})
		})
	}
}

// A receiver that answers at once and reads the body all the same has its connection used again.
func TestAnswerAhead(t *testing.T) {
	t.Parallel()
	byScheme(t, func(conn net.Conn, in *bufio.Reader) {
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, fine)
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
		}
	}, func(t *testing.T, c *Client, target *Target, conns func() int) {
		for range 3 {
			if answer, err := c.Post(t.Context(), target, nil, long(200_000)); err != nil || answer.Body != "ok" {
				t.Errorf("%+v, %v", answer, err)
			}
		}
		if conns() != 1 {
			t.Errorf("%d connections", conns())
		}
	})
}

// A receiver that hangs up on a long body is not asked again, and who waits for it need not wait for the end of the context.
func TestHungUpOnLongBody(t *testing.T) {
	t.Parallel()
	byScheme(t, func(_ net.Conn, in *bufio.Reader) { _, _ = http.ReadRequest(in) }, func(t *testing.T, c *Client, target *Target, conns func() int) {
		_, err := c.Post(t.Context(), target, nil, make([]byte, 20<<20))
		if err == nil || conns() != 1 || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v, %d connections", err, conns())
		}
	})
}

// A receiver that takes no more of a long body and says nothing is left at the end of the context.
func TestStuckOnLongBody(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	byScheme(t, func(_ net.Conn, in *bufio.Reader) {
		_, _ = http.ReadRequest(in)
		<-done
	}, func(t *testing.T, c *Client, target *Target, _ func() int) {
		t.Cleanup(func() { done <- struct{}{} })
		ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, errors.New("enough"))
		defer cancel()
		if _, err := c.Post(ctx, target, nil, make([]byte, 20<<20)); err == nil || !strings.Contains(err.Error(), "enough") {
			t.Error(err)
		}
	})
}

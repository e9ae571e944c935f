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

// runByScheme runs test over http and over https, with a scripted server and a client that trusts it.
func runByScheme(
	t *testing.T,
	serve func(conn net.Conn, in *bufio.Reader),
	test func(t *testing.T, c *Client, target *Target, conns func() int),
) {
	srv := httptest.NewUnstartedServer(nil)
	srv.StartTLS()
	serverConfig := &tls.Config{Certificates: srv.TLS.Certificates, MinVersion: tls.VersionTLS12}
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	srv.Close()
	t.Run("http", func(t *testing.T) {
		target, conns := startScriptedServer(t, func(_ int, conn net.Conn, in *bufio.Reader) { serve(conn, in) })
		c := newTestClient(t)
		c.transport.drainTime = time.Minute // long enough for slow machines
		test(t, c, target, conns)
	})
	t.Run("https", func(t *testing.T) {
		target, conns := startScriptedServer(t, func(_ int, conn net.Conn, _ *bufio.Reader) {
			secure := tls.Server(conn, serverConfig)
			serve(secure, bufio.NewReader(secure))
		})
		target, err := ParseTarget("https://"+target.Host()+"/s3cret", localGuard(t))
		if err != nil {
			t.Fatal(err)
		}
		c := NewClient(localGuard(t), &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots})
		t.Cleanup(c.Close)
		c.transport.drainTime = time.Minute
		test(t, c, target, conns)
	})
}

// serveChecksums responds to each request with the length and a checksum of its body.
func serveChecksums(conn net.Conn, in *bufio.Reader) {
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		text, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		body := checksum(text)
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
}

func checksum(text []byte) string {
	hash := 0
	for i, b := range text {
		hash = hash*31 + int(b) + i
	}
	return fmt.Sprint(len(text), " ", hash)
}

// newBody returns a body whose parts differ from each other.
func newBody(size int) []byte {
	text := make([]byte, size)
	for i := range text {
		text[i] = byte(i*7 + i>>8 + i>>16)
	}
	return text
}

// A body of any length arrives completely, and the connection is reusable afterwards.
func TestPost_BodyLengths(t *testing.T) {
	t.Parallel()
	sizes := []int{
		0, 1, socketBufferBytes, socketBufferBytes + 1, 100_000, maxInlineBody, maxInlineBody + 1, 8 << 20, 100, 60_000,
	}
	runByScheme(t, serveChecksums, func(t *testing.T, c *Client, target *Target, conns func() int) {
		for _, size := range sizes {
			body := newBody(size)
			resp, err := c.Post(t.Context(), target, nil, body)
			if err != nil || resp.Status != http.StatusOK || resp.Body != checksum(body) {
				t.Fatalf("%d bytes: got %+v, %v", size, resp, err)
			}
		}
		if conns() != 1 {
			t.Errorf("got %d connections, want 1", conns())
		}
	})
}

// Long bodies that are sent at the same time over reused connections are not mixed up.
func TestPost_ConcurrentLongBodies(t *testing.T) {
	t.Parallel()
	const posters = 8
	runByScheme(t, serveChecksums, func(t *testing.T, c *Client, target *Target, conns func() int) {
		var wg sync.WaitGroup
		for p := range posters {
			wg.Go(func() {
				for n := range 10 {
					body := newBody(socketBufferBytes + 1 + 150_000*p + n)
					if resp, err := c.Post(t.Context(), target, nil, body); err != nil || resp.Body != checksum(body) {
						t.Errorf("%d bytes: got %+v, %v", len(body), resp, err)
					}
				}
			})
		}
		wg.Wait()
		if conns() > posters {
			t.Errorf("got %d connections, want at most %d", conns(), posters)
		}
	})
}

// A server that sends a 2xx response before it has read the body receives the complete body, even if it reads late.
func TestPost_ResponseLongBeforeBodyIsRead(t *testing.T) {
	t.Parallel()
	const size = 20 << 20
	read := make(chan int64, 1)
	runByScheme(t, func(conn net.Conn, in *bufio.Reader) {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
		time.Sleep(4 * finalReadTimeout)
		n, _ := io.Copy(io.Discard, req.Body)
		read <- n
	}, func(t *testing.T, c *Client, target *Target, _ func() int) {
		resp, err := c.Post(t.Context(), target, nil, newBody(size))
		if err != nil || resp.Status != http.StatusAccepted {
			t.Errorf("Post() = %+v, %v, want status %d", resp, err, http.StatusAccepted)
		}
		if n := <-read; n != size {
			t.Errorf("the server read %d bytes, want %d", n, size)
		}
	})
}

// A server may respond before it has read the body. If a part of a long body is still unsent, the connection is not
// reused.
func TestPost_EarlyErrorResponse(t *testing.T) {
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
			runByScheme(t, serve, func(t *testing.T, c *Client, target *Target, conns func() int) {
				t.Cleanup(func() { done <- struct{}{} })
				resp, err := c.Post(t.Context(), target, nil, make([]byte, size))
				if err != nil || resp.Status != http.StatusRequestEntityTooLarge || resp.Body != "no" {
					t.Errorf("Post() = %+v, %v, want status %d", resp, err, http.StatusRequestEntityTooLarge)
				}
				c.transport.idle.mu.Lock()
				defer c.transport.idle.mu.Unlock()
				if idle := len(c.transport.idle.conns); size > socketBufferBytes && idle != 0 || conns() != 1 {
					t.Errorf("got %d idle connections of %d", idle, conns())
				}
			})
		})
	}
}

// If a server responds at once and then reads the body, its connection is reused.
func TestPost_EarlyResponseKeepsConnection(t *testing.T) {
	t.Parallel()
	runByScheme(t, func(conn net.Conn, in *bufio.Reader) {
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, okResponse)
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
		}
	}, func(t *testing.T, c *Client, target *Target, conns func() int) {
		for range 3 {
			if resp, err := c.Post(t.Context(), target, nil, newBody(200_000)); err != nil || resp.Body != "ok" {
				t.Errorf("Post() = %+v, %v", resp, err)
			}
		}
		if conns() != 1 {
			t.Errorf("got %d connections, want 1", conns())
		}
	})
}

// If a server closes the connection during a long body, Post returns before the end of the context and does not repeat
// the request.
func TestPost_ServerClosesDuringLongBody(t *testing.T) {
	t.Parallel()
	runByScheme(t, func(_ net.Conn, in *bufio.Reader) {
		_, _ = http.ReadRequest(in)
	}, func(t *testing.T, c *Client, target *Target, conns func() int) {
		_, err := c.Post(t.Context(), target, nil, make([]byte, 20<<20))
		if err == nil || conns() != 1 || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("got error %v over %d connections, want an error without secrets over 1", err, conns())
		}
	})
}

// If a server stops reading a long body and does not respond, Post returns at the end of the context.
func TestPost_ServerStopsReadingLongBody(t *testing.T) {
	t.Parallel()
	stopped, done := make(chan struct{}), make(chan struct{}, 1)
	runByScheme(t, func(_ net.Conn, in *bufio.Reader) {
		_, _ = http.ReadRequest(in)
		stopped <- struct{}{}
		<-done
	}, func(t *testing.T, c *Client, target *Target, _ func() int) {
		t.Cleanup(func() { done <- struct{}{} })
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-stopped
			cancel(errors.New("enough"))
		}()
		_, err := c.Post(ctx, target, nil, make([]byte, 20<<20))
		if err == nil || !strings.Contains(err.Error(), "enough") {
			t.Errorf("got error %v, want the cause of the context", err)
		}
	})
}

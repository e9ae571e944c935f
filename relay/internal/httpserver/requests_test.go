package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"golang.org/x/net/http2"
)

// An address has a limited number of HTTP/2 requests in progress. Event streams do not count.
func TestRequests_LimitPerAddress(t *testing.T) {
	t.Parallel()
	proceed := make(chan struct{})
	var running sync.WaitGroup
	began := make(chan struct{}, 2*maxGroupRequests)
	s := run(t, Options{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			BeginStream(r)
		}
		began <- struct{}{}
		<-proceed
		_, _ = io.WriteString(w, "ok")
	})})
	get := func(client *http.Client, path string) (int, string) {
		res, err := client.Get("http://" + s.Addr().String() + path)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		return res.StatusCode, string(body)
	}
	fill := func(path string, n int) {
		for range n / maxStreams {
			client := newHTTP2Client(t, "127.0.0.1")
			for range maxStreams {
				running.Go(func() {
					if status, _ := get(client, path); status != http.StatusOK {
						t.Errorf("got status %d for %s, want 200", status, path)
					}
				})
			}
		}
		for range n {
			<-began
		}
	}
	fill("/stream", maxStreams)
	fill("/", maxGroupRequests)
	client := newHTTP2Client(t, "127.0.0.1")
	if status, body := get(client, "/"); status != http.StatusServiceUnavailable || body != "" {
		t.Errorf("got %d %q beyond the limit, want 503 without a body", status, body)
	}
	close(proceed)
	running.Wait()
	testkit.Eventually(t, "room for another request", func() error {
		if status, _ := get(client, "/"); status != http.StatusOK {
			return errors.New("rejected")
		}
		return nil
	})
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	if s.limiter.waiting != 0 {
		t.Errorf("%d requests are waiting for their handler, want 0", s.limiter.waiting)
	}
}

// newHTTP2Client returns a client that connects from an address and has one connection.
func newHTTP2Client(t *testing.T, address string) *http.Client {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{Protocols: new(http.Protocols), DialContext: dialer.DialContext}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// Ten addresses that use all requests do not lock out another one.
func TestRequests_AddressesShareTotal(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has the addresses 127.0.0.2 to 127.0.0.12 without configuration")
	}
	began := make(chan struct{}, 2*maxRequests)
	s := run(t, Options{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
		}
	})})
	url := "http://" + s.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	var closed atomic.Int64
	for address := range maxRequests / maxGroupRequests {
		for range maxGroupRequests / maxStreams {
			client := newHTTP2Client(t, fmt.Sprintf("127.0.0.%d", address+2))
			for range maxStreams {
				running.Go(func() {
					req, err := http.NewRequestWithContext(ctx, http.MethodPut, url+"/slow", nil)
					if err != nil {
						t.Error(err)
						return
					}
					res, err := client.Do(req)
					if err == nil {
						_ = res.Body.Close()
						t.Errorf("got status %d, want a request that ends with its connection", res.StatusCode)
					}
					if ctx.Err() == nil {
						closed.Add(1)
					}
				})
			}
		}
	}
	for range maxRequests {
		<-began
	}
	for range 2 { // one closed connection makes room for both
		res, err := newHTTP2Client(t, "127.0.0.12").Get(url)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Errorf("got status %d for another address, want 200", res.StatusCode)
		}
	}
	testkit.Eventually(t, "one closed connection", func() error {
		if n := closed.Load(); n != maxStreams {
			return fmt.Errorf("%d requests ended, want %d", n, maxStreams)
		}
		return nil
	})
}

// Each HTTP/2 connection keeps a buffer as large as its largest frame.
func TestHTTP2_RejectsLargeFrame(t *testing.T) {
	t.Parallel()
	s := run(t, Options{})
	for size, want := range map[int]http2.ErrCode{maxFrame: http2.ErrCodeNo, maxFrame + 1: http2.ErrCodeFrameSize} {
		conn := dial(t, s)
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		framer := http2.NewFramer(conn, conn)
		if err := errors.Join(framer.WriteSettings(), framer.WriteRawFrame(0x42, 0, 0, make([]byte, size)),
			framer.WritePing(false, [8]byte{1})); err != nil {
			t.Fatal(err)
		}
		got := http2.ErrCodeNo
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				t.Fatalf("a frame of %d bytes: %v", size, err)
			}
			if away, ok := f.(*http2.GoAwayFrame); ok {
				got = away.ErrCode
				break
			}
			if ping, ok := f.(*http2.PingFrame); ok && ping.IsAck() {
				break
			}
		}
		if got != want {
			t.Errorf("a frame of %d bytes: got %v, want %v", size, got, want)
		}
	}
}

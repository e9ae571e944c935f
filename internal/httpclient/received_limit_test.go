package httpclient

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// Large responses of HTTP/2 do not reach the limit, although the client resets the streams.
func TestPost_LargeHTTP2Responses(t *testing.T) {
	t.Parallel()
	var http2 atomic.Bool
	http2.Store(true)
	connections := make(map[string]bool)
	c, target := startServer(t, "https", &http2, func(w http.ResponseWriter, r *http.Request) {
		connections[r.RemoteAddr] = true // one request at a time
		_, _ = w.Write(bytes.Repeat([]byte("x"), 1<<20))
	})
	for range 20 {
		resp, err := c.Post(t.Context(), target, nil, []byte("{}"))
		if err != nil || resp.Status != http.StatusOK {
			t.Fatalf("got %+v, %v", resp, err)
		}
	}
	if len(connections) != 1 {
		t.Errorf("got %d connections, want 1", len(connections))
	}
}

// A server of HTTP/2 that floods a connection with frames loses it.
func TestPost_HTTP2Flood(t *testing.T) {
	t.Parallel()
	trusted := httptest.NewUnstartedServer(nil)
	trusted.EnableHTTP2 = true
	trusted.StartTLS() // for its certificate
	defer trusted.Close()
	config := trusted.TLS.Clone()
	config.NextProtos = []string{"h2"}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	sent := make(chan int, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		var b bytes.Buffer
		framer := http2.NewFramer(&b, nil)
		_ = framer.WriteSettings() // into memory
		for range 1000 {
			_ = framer.WritePing(true, [8]byte{})
		}
		n := 0
		for ; n < 1<<30 && err == nil; n += b.Len() {
			_, err = conn.Write(b.Bytes())
		}
		sent <- n
	}()
	roots := x509.NewCertPool()
	roots.AddCert(trusted.Certificate())
	c := NewClient(localGuard(t), &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots})
	defer c.Close()
	target, err := ParseTarget("https://"+listener.Addr().String()+"/", localGuard(t))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := c.Post(t.Context(), target, nil, []byte("{}")); err == nil {
		t.Errorf("got %+v, want an error", resp)
	}
	select {
	case n := <-sent:
		if n > 32<<20 { // the limit and the buffers of both sockets
			t.Errorf("the server sent %d bytes", n)
		}
	case <-time.After(15 * time.Second):
		t.Error("the connection is still open")
	}
}

func TestCreditConn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCreditConn(&net.TCPConn{})
		if !c.spend(responseCredit, time.Now()) || c.spend(1, time.Now()) {
			t.Error("a new connection does not allow one response")
		}
		time.Sleep(time.Minute)
		if !c.spend(60*creditPerSecond-1, time.Now()) || c.spend(1, time.Now()) {
			t.Error("a minute does not allow a minute of frames")
		}
		for range 1000 {
			c.addResponse()
		}
		if !c.spend(maxCredit, time.Now()) || c.spend(1, time.Now()) {
			t.Error("the credit of many responses has no limit")
		}
	})
}

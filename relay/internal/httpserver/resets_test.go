package httpserver

import (
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

// resetRequests sends up to n requests on one HTTP/2 connection and resets each when its handler has begun. It returns
// the number of requests until the server closed the connection, or n.
func resetRequests(t *testing.T, n int, proxies ...netip.Prefix) int {
	t.Helper()
	began, ended := make(chan struct{}), make(chan struct{})
	s := run(t, Options{
		TrustedProxies: clientaddr.Proxies{Networks: proxies},
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			began <- struct{}{}
			<-r.Context().Done()
			ended <- struct{}{}
		}),
	})
	const (
		preface  = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
		get      = "\x82\x86\x84\x41\x01h" // GET http://h/
		headHead = "\x00\x00\x06\x01\x05"
		headRST  = "\x00\x00\x04\x03\x00"
		canceled = "\x00\x00\x00\x08"
	)
	conn := dial(t, s)
	if _, err := io.WriteString(conn, preface); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, conn)
		close(closed)
	}()
	for i := range n {
		id := string(binary.BigEndian.AppendUint32(nil, uint32(2*i+1)))
		if !writeAndWait(conn, headHead+id+get, began, closed) || !writeAndWait(conn, headRST+id+canceled, ended, closed) {
			return i
		}
	}
	return n
}

// writeAndWait writes frames and waits for their effect. It returns false if the connection was closed.
func writeAndWait(conn net.Conn, frames string, effect, closed <-chan struct{}) bool {
	if _, err := io.WriteString(conn, frames); err != nil {
		return false
	}
	select {
	case <-effect:
		return true
	case <-closed:
		return false
	}
}

// A client that resets its requests would otherwise get around the limit of concurrent requests.
func TestResets_CloseConnection(t *testing.T) {
	t.Parallel()
	const n = 10 * resetBurst
	if got := resetRequests(t, n); got < resetBurst || got == n {
		t.Errorf("got a closed connection after %d resets, want after %d or some more", got, resetBurst)
	}
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	if got := resetRequests(t, 2*resetBurst, loopback); got != 2*resetBurst {
		t.Errorf("a trusted proxy: got a closed connection after %d resets", got)
	}
}

package httpserver

import (
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

// resetRequests sends up to n requests on one HTTP/2 connection and resets each when its handler has begun. It returns
// the number of requests until the server closed the connection, or n.
func resetRequests(t *testing.T, n int, proxies ...netip.Prefix) (resets int, s *Server, counts *connCounts) {
	t.Helper()
	counts = new(connCounts)
	began, ended := make(chan struct{}), make(chan struct{})
	s = run(t, Options{
		ConnObserver:   counts,
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
			return i, s, counts
		}
	}
	return n, s, counts
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

// A client that resets its requests would otherwise get around the limit of concurrent requests. It cannot continue on a
// new connection.
func TestResets_CloseConnection(t *testing.T) {
	t.Parallel()
	const n = 10 * resetBurst
	got, s, counts := resetRequests(t, n)
	if got < resetBurst || got == n {
		t.Errorf("got a closed connection after %d resets, want after %d or some more", got, resetBurst)
	}
	if !isClosed(t, dial(t, s)) {
		t.Error("a new connection of the address was accepted")
	}
	if got := counts.rejectedBlocked.Load(); got != 1 {
		t.Errorf("%d connections were rejected for resets, want 1", got)
	}
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	if got, _, _ = resetRequests(t, 2*resetBurst, loopback); got != 2*resetBurst {
		t.Errorf("a trusted proxy: got a closed connection after %d resets", got)
	}
}

// The block of an address ends, and so does the memory for it.
func TestResets_BlockEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newConnLimiter(Options{Log: slog.New(slog.DiscardHandler)})
		isBlocked := func(peer netip.Addr) bool { return l.isBlocked(clientaddr.Group(peer)) }
		peer := netip.MustParseAddr("2001:db8::1")
		l.blockAddress(clientaddr.Group(peer))
		if neighbor := netip.MustParseAddr("2001:db8::2"); !isBlocked(peer) || !isBlocked(neighbor) {
			t.Error("the address and its /64 are not blocked")
		}
		if isBlocked(netip.MustParseAddr("2001:db8:0:1::1")) {
			t.Error("another address is blocked")
		}
		time.Sleep(blockTime)
		if isBlocked(peer) {
			t.Error("the address is still blocked")
		}
		for i := range 2 * maxBlocked {
			l.blockAddress(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32))
		}
		if len(l.blocked) != maxBlocked || isBlocked(peer) {
			t.Errorf("%d addresses are blocked, want %d without the old one", len(l.blocked), maxBlocked)
		}
	})
}

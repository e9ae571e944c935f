package clients

import (
	"fmt"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// An event stream whose client reads nothing is closed although all data fits into kernel buffers and no write ever
// blocks.
func TestSSE_UnreadStreamIsClosed(t *testing.T) {
	t.Parallel()
	const pongTimeout = 300 * time.Millisecond
	n := startNodeOver(t, Options{PongTimeout: pongTimeout, WriteTimeout: patience}, nil, (*httptest.Server).Start)
	c := openUnreadStream(t, n)
	began := time.Now()
	for i := range 3 {
		n.Broadcast([]relay.Notification{sized("h", "", "job.created", i, 30_000)})
	}
	if idle, stays := c.isIdle(); !idle && stays { // a stall may have outlasted the timeout already
		t.Fatal("what was written waits")
	}
	n.wantEnding(t, ClosedByClient)
	if after := time.Since(began); after < pongTimeout/2 { // the kernel counts in ticks
		t.Errorf("it was ended after %s", after)
	}
}

// The write queue fills although the send buffer of the kernel may grow to megabytes.
func TestSlowClient_KernelKeepsLittle(t *testing.T) {
	t.Parallel()
	n := startNodeOver(t, Options{PongTimeout: patience, WriteTimeout: patience}, nil, (*httptest.Server).Start)
	c := openUnreadStream(t, n)
	const size, maxBytes = 30_000, 512 << 10
	for i := range maxBytes / size {
		n.Broadcast([]relay.Notification{sized("h", "", "job.created", i, size)})
		if idle, stays := c.isIdle(); !idle && stays {
			return
		}
	}
	t.Errorf("the kernel accepted %d bytes", maxBytes)
}

// openUnreadStream opens an event stream whose client reads nothing after the response.
func openUnreadStream(t *testing.T, n *node) *connection {
	t.Helper()
	conn, err := net.Dial("tcp", n.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	tcp, _ := conn.(*net.TCPConn)
	if err := tcp.SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprint(conn, "GET /?hub=h HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil { // the response has started
		t.Fatal(err)
	}
	c := n.allConnections()[0]
	testkit.WaitFor(t, "the answer is written", func() bool { idle, _ := c.isIdle(); return idle })
	return c
}

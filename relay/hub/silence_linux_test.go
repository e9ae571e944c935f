package hub

import (
	"fmt"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// An event stream whose client takes nothing is ended, although what was written fits the buffers of the system, so that no
// write ever waits.
func TestEventsThatNobodyTakes(t *testing.T) {
	t.Parallel()
	n := startNodeOver(t, Options{PongTimeout: 300 * time.Millisecond, WriteTimeout: patience}, nil, (*httptest.Server).Start)
	conn, err := net.Dial("tcp", n.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	tcp, _ := conn.(*net.TCPConn)
	if err := tcp.SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprint(conn, "GET /?hub=h HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-n.connected
	for i := range 3 {
		n.Broadcast([]relay.Notification{sized("h", "", "job.created", i, 30_000)})
	}
	for _, c := range n.everyone() {
		if idle, stays := c.idle(); !idle || !stays {
			t.Fatalf("what was written waits: %v, or it has left: %v", !idle, !stays)
		}
	}
	n.wantEnding(t, EndedByClient)
}

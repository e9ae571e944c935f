package eventlog

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// slowConn is a connection with limited bandwidth.
type slowConn struct {
	net.Conn
	bytesPerSecond int
}

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), c.bytesPerSecond/20)])
	timer := time.NewTimer(time.Duration(n) * time.Second / time.Duration(c.bytesPerSecond))
	<-timer.C
	return n, err
}

// A large reply may need longer than the read timeout. If it were interrupted, the reader would request it again and
// never continue.
func TestRange_OverSlowConnection(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes seven seconds")
	}
	s := redistest.Start(t)
	fast := open(t, s, redisconn.Options{})
	const n, size = 24, 256 << 10
	for i := range n {
		big := notification("h", i)
		big.Data = make([]byte, size)
		mustAppend(t, fast, big)
	}
	b := openOptions(t, redisconn.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.Socket)
		return slowConn{conn, 1 << 20}, err
	}})
	got, err := b.Range(t.Context(), 0, "", 2*n)
	if err != nil || len(got) != n {
		t.Errorf("got %d entries, %v, want %d", len(got), err, n)
	}
}

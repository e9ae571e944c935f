package eventlog

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// slowConn is a line that lets through few bytes a second.
type slowConn struct {
	net.Conn
	perSecond int
}

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), c.perSecond/20)])
	timer := time.NewTimer(time.Duration(n) * time.Second / time.Duration(c.perSecond))
	<-timer.C
	return n, err
}

// What one read of the log brings may take longer than Redis may be silent. Cut off, it would be read again and cut off
// again, and nothing accepted would ever reach a sink.
func TestLogIsReadOverASlowLine(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes seven seconds")
	}
	s := redistest.Start(t)
	fast := open(t, s, redisconn.Options{})
	const n, size = 24, 256 << 10
	for i := range n {
		big := conntest.Notification("h", i)
		big.Data = make([]byte, size)
		mustAppend(t, fast, big)
	}
	b := openOptions(t, redisconn.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.Socket)
		return slowConn{conn, 1 << 20}, err
	}})
	got, err := b.Range(t.Context(), 0, "", 2*n)
	if err != nil || len(got) != n {
		t.Errorf("read %d of %d, %v", len(got), n, err)
	}
}

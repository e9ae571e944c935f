package backbone

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// idleTimeoutConn makes a read deadline bound the silence of the server and not a whole answer: a long answer over a slow
// line would be cut off, asked for again, and cut off again for ever.
type idleTimeoutConn struct {
	net.Conn
	idleTimeout atomic.Int64 // nanoseconds of silence that the last deadline allows, zero for any
}

// idleTimeoutSyscallConn lets go-redis look whether an idle connection is still alive, as it does with plain ones.
type idleTimeoutSyscallConn struct {
	*idleTimeoutConn
	syscall.Conn
}

// withIdleTimeout returns conn where it is that already.
func withIdleTimeout(conn net.Conn) net.Conn {
	switch conn.(type) {
	case *idleTimeoutConn, idleTimeoutSyscallConn:
		return conn
	}
	p := &idleTimeoutConn{Conn: conn}
	if s, ok := conn.(syscall.Conn); ok {
		return idleTimeoutSyscallConn{p, s}
	}
	return p
}

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// idleTimeoutDialer makes every connection of d patient.
func idleTimeoutDialer(d dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return withIdleTimeout(conn), nil
	}
}

func (c *idleTimeoutConn) SetDeadline(t time.Time) error {
	c.setIdleTimeout(t)
	return c.Conn.SetDeadline(t)
}

func (c *idleTimeoutConn) SetReadDeadline(t time.Time) error {
	c.setIdleTimeout(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *idleTimeoutConn) setIdleTimeout(t time.Time) {
	wait := time.Duration(0)
	if !t.IsZero() {
		wait = time.Until(t)
	}
	c.idleTimeout.Store(int64(wait))
}

func (c *idleTimeoutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if wait := time.Duration(c.idleTimeout.Load()); err == nil && wait > 0 {
		err = c.Conn.SetReadDeadline(time.Now().Add(wait))
	}
	return n, err
}

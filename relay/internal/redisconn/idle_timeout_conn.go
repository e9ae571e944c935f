package redisconn

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// idleTimeoutConn applies a read deadline to the silence of the server instead of the whole reply. Otherwise, a long
// reply over a slow connection would be interrupted, requested again, and interrupted again.
type idleTimeoutConn struct {
	net.Conn
	idleTimeout atomic.Int64 // nanoseconds of silence that the last deadline allows; 0 is no limit
}

// idleTimeoutSyscallConn lets go-redis check whether an idle connection is still open, as it does with plain
// connections.
type idleTimeoutSyscallConn struct {
	*idleTimeoutConn
	syscall.Conn
}

// WithIdleTimeout returns a connection whose read deadlines limit the silence of the server. Each piece that arrives
// extends the deadline.
func WithIdleTimeout(conn net.Conn) net.Conn {
	switch conn.(type) {
	case *idleTimeoutConn, idleTimeoutSyscallConn:
		return conn
	}
	c := &idleTimeoutConn{Conn: conn}
	if s, ok := conn.(syscall.Conn); ok {
		return idleTimeoutSyscallConn{c, s}
	}
	return c
}

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// idleTimeoutDialer applies WithIdleTimeout to all connections of d.
func idleTimeoutDialer(d dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return WithIdleTimeout(conn), nil
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

func (c *idleTimeoutConn) setIdleTimeout(deadline time.Time) {
	timeout := time.Duration(0)
	if !deadline.IsZero() {
		timeout = time.Until(deadline)
	}
	c.idleTimeout.Store(int64(timeout))
}

func (c *idleTimeoutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if timeout := time.Duration(c.idleTimeout.Load()); err == nil && timeout > 0 {
		err = c.Conn.SetReadDeadline(time.Now().Add(timeout))
	}
	return n, err
}

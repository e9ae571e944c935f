package backbone

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// patientConn makes a read deadline bound the silence of the server and not a whole answer: a long answer over a slow
// line would be cut off, asked for again, and cut off again for ever.
type patientConn struct {
	net.Conn
	wait atomic.Int64 // nanoseconds of silence that the last deadline allows, zero for any
}

// patientSyscallConn lets go-redis look whether an idle connection is still alive, as it does with plain ones.
type patientSyscallConn struct {
	*patientConn
	syscall.Conn
}

// patient returns conn where it is that already.
func patient(conn net.Conn) net.Conn {
	switch conn.(type) {
	case *patientConn, patientSyscallConn:
		return conn
	}
	p := &patientConn{Conn: conn}
	if s, ok := conn.(syscall.Conn); ok {
		return patientSyscallConn{p, s}
	}
	return p
}

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// patientDialer makes every connection of d patient.
func patientDialer(d dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return patient(conn), nil
	}
}

func (c *patientConn) SetDeadline(t time.Time) error {
	c.note(t)
	return c.Conn.SetDeadline(t)
}

func (c *patientConn) SetReadDeadline(t time.Time) error {
	c.note(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *patientConn) note(t time.Time) {
	wait := time.Duration(0)
	if !t.IsZero() {
		wait = time.Until(t)
	}
	c.wait.Store(int64(wait))
}

func (c *patientConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if wait := time.Duration(c.wait.Load()); err == nil && wait > 0 {
		err = c.Conn.SetReadDeadline(time.Now().Add(wait))
	}
	return n, err
}

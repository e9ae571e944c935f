package brokers

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"syscall"
)

const (
	// maxReplyBytes is the number of bytes that a broker may send without a write. Libraries keep a line or a packet of any
	// length in memory until it is complete.
	maxReplyBytes = 16 << 20
	// maxCredit is the number of bytes that a broker may send after many writes.
	maxCredit = 4 * maxReplyBytes
)

var errLongReply = errors.New("the broker sent more than 16 MiB without a request")

// limitedConn limits how much a broker sends. Replies are short, except rejected messages, which AMQP returns. So each written
// byte allows two more, up to maxCredit. It may be used concurrently.
type limitedConn struct {
	net.Conn

	mu     sync.Mutex
	credit int // bytes that the broker may still send
}

func newLimitedConn(c net.Conn) *limitedConn { return &limitedConn{Conn: c, credit: maxReplyBytes} }

func (c *limitedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.credit -= n; c.credit < 0 {
		return 0, errLongReply
	}
	return n, err
}

func (c *limitedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.credit = min(max(c.credit, maxReplyBytes)+2*len(b), maxCredit)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// SyscallConn lets a library check whether the broker has closed the connection.
func (c *limitedConn) SyscallConn() (syscall.RawConn, error) {
	socket, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return socket.SyscallConn()
}

// dialLimited connects without TLS.
func dialLimited(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return newLimitedConn(conn), nil
}

// dialBroker connects, with TLS if it is configured. It reads the TLS files for each connection.
func (s *Sink) dialBroker(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	config, err := s.tlsConfig(host)
	if err != nil {
		return nil, err
	}
	conn, err := dialLimited(ctx, network, address)
	if err != nil || config == nil {
		return conn, err
	}
	secure := tls.Client(conn, config)
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

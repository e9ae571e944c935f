package embeddedredis

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/alicebob/miniredis/v2"
)

// MemoryServer is a Redis in this process. Its methods may be called concurrently.
type MemoryServer struct {
	redis *miniredis.Miniredis

	mu     sync.Mutex
	closed bool
}

// Memory starts a Redis without persistence. It does not listen, so other users of the machine cannot connect. Use
// [MemoryServer.Dialer].
func Memory(_ context.Context) (*MemoryServer, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	// Dial is the only way to start miniredis without a listener. Its net.Pipe would deadlock on pipelines, so this
	// connection is closed.
	conn, err := m.Dial()
	if err != nil {
		return nil, fmt.Errorf("start the in-memory redis: %w", err)
	}
	_ = conn.Close()
	return &MemoryServer{redis: m}, nil
}

// Dialer connects a client. It ignores the network and the address.
func (s *MemoryServer) Dialer(ctx context.Context, _, _ string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	client, remote, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("connect to the in-memory redis: %w", err)
	}
	// A client may still dial in the background when it is closed.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_, _ = client.Close(), remote.Close()
		return nil, net.ErrClosed
	}
	s.redis.Server().ServeConn(newBufferedConn(remote))
	return client, nil
}

// Close stops the server and closes all connections. It may be called twice.
func (s *MemoryServer) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.redis.Close()
	}
}

func socketPair() (net.Conn, net.Conn, error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, err
	}
	one, err := fileConn(fds[0])
	if err != nil {
		_ = syscall.Close(fds[1])
		return nil, nil, err
	}
	other, err := fileConn(fds[1])
	if err != nil {
		_ = one.Close()
		return nil, nil, err
	}
	return one, other, nil
}

// fileConn takes ownership of the descriptor, even if it fails.
func fileConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socketpair")
	defer func() { _ = f.Close() }()
	return net.FileConn(f)
}

// bufferedConn is a connection whose Write never blocks. miniredis writes the reply to each command of a pipeline
// separately, while a client writes the whole pipeline before it reads. About 300 short replies fill the buffer of a
// socket.
type bufferedConn struct {
	net.Conn
	wake chan struct{} // buf has data, or the connection is closed

	mu     sync.Mutex
	buf    []byte
	closed bool
}

func newBufferedConn(conn net.Conn) *bufferedConn {
	c := &bufferedConn{Conn: conn, wake: make(chan struct{}, 1)}
	go c.writeLoop()
	return c
}

func (c *bufferedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	c.buf = append(c.buf, b...)
	c.mu.Unlock()
	c.wakeWriter()
	return len(b), nil
}

func (c *bufferedConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wakeWriter()
	return c.Conn.Close()
}

func (c *bufferedConn) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *bufferedConn) writeLoop() {
	var spare []byte
	for range c.wake {
		c.mu.Lock()
		out, closed := c.buf, c.closed
		c.buf = spare[:0]
		c.mu.Unlock()
		if closed {
			return
		}
		if _, err := c.Conn.Write(out); err != nil {
			_ = c.Close()
			return
		}
		if spare = out; cap(spare) > 1<<16 {
			spare = nil
		}
	}
}

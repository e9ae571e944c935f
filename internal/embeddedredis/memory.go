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

// MemoryServer is a Redis inside this process. Its methods may be called concurrently.
type MemoryServer struct {
	redis *miniredis.Miniredis
	once  sync.Once
}

// Memory starts a Redis whose contents end with it. It listens nowhere: connections come from Dialer alone, so no other
// user of the machine reaches it.
func Memory(_ context.Context) (*MemoryServer, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	// Dial is miniredis' one way to start without a listener. Its net.Pipe would deadlock on pipelines, so none is
	// kept.
	conn, err := m.Dial()
	if err != nil {
		return nil, fmt.Errorf("start the redis in memory: %w", err)
	}
	_ = conn.Close()
	return &MemoryServer{redis: m}, nil
}

// Dialer connects a client; both arguments after the context are ignored.
func (s *MemoryServer) Dialer(ctx context.Context, _, _ string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("connect to the redis in memory: %w", err)
	}
	server := s.redis.Server()
	if server == nil {
		_, _ = ours.Close(), theirs.Close()
		return nil, net.ErrClosed
	}
	server.ServeConn(newPatientConn(theirs))
	return ours, nil
}

// Close ends the server and every connection. It may be called twice.
func (s *MemoryServer) Close() { s.once.Do(s.redis.Close) }

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

// fileConn takes the descriptor over, on failure too.
func fileConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socketpair")
	defer func() { _ = f.Close() }()
	return net.FileConn(f)
}

// bufferedConn is a connection whose Write never waits for the other side. miniredis answers each command of a
// pipeline by itself while a client reads nothing before it has written all: some 300 short answers fill a socket's
// buffer.
type bufferedConn struct {
	net.Conn
	wake chan struct{} // something to write, or closed

	mu     sync.Mutex
	buf    []byte
	closed bool
}

func newPatientConn(conn net.Conn) *bufferedConn {
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
	c.signal()
	return len(b), nil
}

func (c *bufferedConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.signal()
	return c.Conn.Close()
}

func (c *bufferedConn) signal() {
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

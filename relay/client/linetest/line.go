// Package linetest is a line between a client and a relay that tests cut. It is for tests alone.
package linetest

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
)

// held is about how many bytes a line holds of what a client does not read, so that the relay notices soon.
const held = 64 << 10

// Line passes connections on to a relay, until they are cut. Its methods may be called concurrently.
type Line struct {
	net.Listener
	to func() string

	mu    sync.Mutex
	conns []net.Conn
	ended bool
}

// Start returns a line that lasts until the test ends. It asks for each connection which address, host:port, that leads to.
func Start(tb testing.TB, to func() string) *Line {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	l := &Line{Listener: listener, to: to}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { l.pass(near) })
		}
	})
	tb.Cleanup(func() {
		_ = listener.Close()
		l.mu.Lock()
		l.ended = true
		l.mu.Unlock()
		l.Cut()
		wg.Wait()
	})
	return l
}

func (l *Line) pass(near net.Conn) {
	defer func() { _ = near.Close() }()
	far, err := (&net.Dialer{Control: inSegments}).Dial("tcp", l.to())
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	if near, ok := near.(*net.TCPConn); ok {
		_ = near.SetWriteBuffer(held / 2)
	}
	if far, ok := far.(*net.TCPConn); ok {
		_ = far.SetReadBuffer(held / 2)
	}
	if !l.keep(near, far) {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_, _ = io.Copy(far, near)
		_ = far.Close()
	})
	_, _ = io.Copy(near, struct{ io.Reader }{far}) // the system's own way, splice, holds a megabyte
	_ = near.Close()
}

// inSegments gives a connection the segments of an Ethernet. With those of loopback, of 64 KiB, the far side's socket takes
// megabytes of what nobody reads.
func inSegments(_, _ string, conn syscall.RawConn) error {
	var failed error
	err := conn.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 1460)
	})
	return errors.Join(err, failed)
}

// keep notes what Cut has to break off; it reports false at the end of the test.
func (l *Line) keep(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, conns...)
	return !l.ended
}

// Cut breaks all connections off.
func (l *Line) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
}

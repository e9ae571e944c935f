// Package linetest is a line between a client and a relay that tests cut. It is for tests alone.
package linetest

import (
	"io"
	"net"
	"sync"
	"testing"
)

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
	far, err := net.Dial("tcp", l.to())
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	if !l.keep(near, far) {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_, _ = io.Copy(far, near)
		_ = far.Close()
	})
	_, _ = io.Copy(near, far)
	_ = near.Close()
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

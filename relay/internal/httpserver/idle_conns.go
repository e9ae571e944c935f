package httpserver

import (
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// newConnGrace is the time that a shutdown waits for the first byte of a connection. net/http waits 5 s, which would
// delay every shutdown: browsers and Go's client open connections in advance and may not use them.
const newConnGrace = 500 * time.Millisecond

// newConns are the connections without any received data.
type newConns struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool // new connections are closed at once
}

// onState is the ConnState function of the http.Server.
func (n *newConns) onState(conn net.Conn, state http.ConnState) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(n.conns, conn)
	case n.closed:
		_ = conn.Close()
	default:
		if n.conns == nil {
			n.conns = make(map[net.Conn]struct{})
		}
		n.conns[conn] = struct{}{}
	}
}

func (n *newConns) closeAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	for conn := range n.conns {
		if !hasUnreadData(conn) {
			_ = conn.Close()
		}
	}
}

// hasUnreadData reports whether the socket has data that net/http has not read yet, as on a busy machine.
func hasUnreadData(conn net.Conn) bool {
	if plain, ok := conn.(*plainConn); ok && plain.limited != nil {
		conn = plain.limited
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	var n int
	var b [1]byte
	err = raw.Control(func(fd uintptr) {
		n, _, _ = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return err == nil && n > 0
}

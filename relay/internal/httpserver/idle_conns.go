package httpserver

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// newConnGrace is how long a stop waits for the first byte of a connection. net/http waits for 5 s, which browsers and
// Go's own client would cost us at every stop: both open connections that they then do not need.
const newConnGrace = 500 * time.Millisecond

// newConns is the connections on which nothing has come yet.
type newConns struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool // none may stay silent any more
}

// onState is an http.Server's ConnState.
func (s *newConns) onState(conn net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(s.conns, conn)
	case s.closed:
		_ = conn.Close()
	default:
		if s.conns == nil {
			s.conns = make(map[net.Conn]struct{})
		}
		s.conns[conn] = struct{}{}
	}
}

func (s *newConns) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for conn := range s.conns {
		if !hasUnreadData(conn) {
			_ = conn.Close()
		}
	}
}

// hasUnreadData tells whether something has come that nobody has looked at yet, as on a busy machine. net/http reads it soon.
func hasUnreadData(conn net.Conn) bool {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if plain, ok := conn.(*envelopeConn); ok {
		conn = plain.Conn
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

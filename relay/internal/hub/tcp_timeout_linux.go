package hub

import (
	"crypto/tls"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// setTCPUserTimeout lets the system close a connection whose far side has acknowledged nothing of what was written for so long, or
// has taken nothing of it. By itself it waits a quarter of an hour for the one, and for ever for the other. HTTP/2 has pings of
// the server's.
func setTCPUserTimeout(conn net.Conn, silence time.Duration) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // what fails here is noticed by the first write
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	})
}

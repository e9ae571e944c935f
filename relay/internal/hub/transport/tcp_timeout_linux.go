package transport

import (
	"crypto/tls"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SetTCPUserTimeout makes the kernel close a connection whose remote end has not acknowledged or read written data for
// the given time. The defaults are 15 minutes without an acknowledgment, and no limit for a client that does not
// read. HTTP/2 does not need it, because the server sends pings.
func SetTCPUserTimeout(conn net.Conn, timeout time.Duration) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // if this fails, the next write fails as well
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(timeout.Milliseconds()))
	})
}

package transport

import (
	"crypto/tls"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxUnsent is the maximum number of written bytes that the kernel keeps unsent per connection. Otherwise it keeps up to
// net.ipv4.tcp_wmem (4 MiB) for each client that does not read.
const maxUnsent = 64 << 10

// LimitUnsent makes the kernel keep at most 64 KiB of unsent data for a TCP connection, with or without TLS. Further writes
// wait, so a slow client fills its write queue, not the kernel's memory.
func LimitUnsent(conn net.Conn) {
	setTCPOption(conn, unix.TCP_NOTSENT_LOWAT, maxUnsent)
}

// SetTCPUserTimeout makes the kernel close a connection whose remote end has not acknowledged or read written data for
// the given time. The defaults are 15 minutes without an acknowledgment, and no limit for a client that does not
// read. HTTP/2 does not need it, because the server sends pings.
func SetTCPUserTimeout(conn net.Conn, timeout time.Duration) {
	setTCPOption(conn, unix.TCP_USER_TIMEOUT, int(timeout.Milliseconds()))
}

func setTCPOption(conn net.Conn, option, value int) {
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
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option, value)
	})
}

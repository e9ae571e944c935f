package hub

import (
	"crypto/tls"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// setTCPUserTimeout lets the system close a connection whose remote end acknowledges or accepts nothing for the given
// time. By default the system waits a quarter of an hour for acknowledgments, and forever for a full window. HTTP/2
// uses pings of the server.
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

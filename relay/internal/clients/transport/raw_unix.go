//go:build unix

package transport

import (
	"net"
	"syscall"
)

// RawConn returns the socket of conn and its file descriptor. It returns nil and -1 if conn does not send bytes
// unchanged: TLS, or an unknown wrapper.
func RawConn(conn net.Conn) (syscall.RawConn, int) {
	direct, ok := conn.(syscall.Conn) // a *tls.Conn is none
	if !ok {
		return nil, -1
	}
	raw, err := direct.SyscallConn()
	if err != nil {
		return nil, -1
	}
	number := -1
	if err := raw.Control(func(fd uintptr) { number = int(fd) }); err != nil {
		return nil, -1
	}
	return raw, number
}

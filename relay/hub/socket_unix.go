//go:build unix

package hub

import (
	"errors"
	"net"
	"syscall"
)

// rawConn returns the socket behind conn, or nil where bytes written to it would not be what conn sends: TLS, or a
// wrapper that we do not know.
func rawConn(conn net.Conn) syscall.RawConn {
	var direct syscall.Conn
	switch c := conn.(type) {
	case *net.TCPConn:
		direct = c
	case *net.UnixConn:
		direct = c
	default:
		return nil
	}
	raw, err := direct.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// writeNow writes what the socket takes without blocking. Nothing, without an error, means that it is full.
func writeNow(fd uintptr, p []byte) (int, error) {
	for {
		n, err := syscall.Write(int(fd), p)
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return 0, nil
		default:
			return 0, err
		}
	}
}

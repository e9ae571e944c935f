//go:build !unix

package transport

import (
	"errors"
	"net"
	"syscall"
)

// RawConn returns nil and -1: on this system every write uses the connection.
func RawConn(net.Conn) (syscall.RawConn, int) { return nil, -1 }

// WriteNow is not supported.
func WriteNow(int, []byte) (int, error) { return 0, errors.ErrUnsupported }

//go:build !unix

package hub

import (
	"errors"
	"net"
	"syscall"
)

// rawConn returns nil: on this system every write goes through the connection.
func rawConn(net.Conn) syscall.RawConn { return nil }

func writeNow(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

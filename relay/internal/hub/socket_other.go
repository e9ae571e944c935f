//go:build !unix

package hub

import (
	"errors"
	"net"
	"syscall"
)

// rawConn returns nil and -1: on this system every write goes through the connection.
func rawConn(net.Conn) (syscall.RawConn, int) { return nil, -1 }

func writeNow(int, []byte) (int, error) { return 0, errors.ErrUnsupported }

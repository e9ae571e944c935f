//go:build unix && (!linux || 386 || s390x)

package hub

import (
	"errors"
	"syscall"
)

// writeNow writes what the socket takes without blocking. Nothing, without an error, means that it is full.
func writeNow(fd int, p []byte) (int, error) {
	for {
		n, err := syscall.Write(fd, p)
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

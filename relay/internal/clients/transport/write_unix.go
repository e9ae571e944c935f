//go:build unix && (!linux || 386 || s390x)

package transport

import (
	"errors"
	"syscall"
)

// WriteNow writes without blocking and returns the number of bytes written. If the socket is full, that is 0 without
// an error.
func WriteNow(fd int, p []byte) (int, error) {
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

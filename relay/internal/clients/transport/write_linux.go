//go:build linux && !386 && !s390x

package transport

import (
	"syscall"
	"unsafe"
)

// WriteNow writes without blocking and returns the number of bytes written. If the socket is full, that is 0 without
// an error.
//
// It is a raw system call: entering and leaving the scheduler would cost more than it gains, because a broadcast
// makes thousands of these short calls. For a socket, sendto is faster than write, which also handles files.
func WriteNow(fd int, p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO,
			uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)),
			syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, nil
		default:
			return 0, errno
		}
	}
}

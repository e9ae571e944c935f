//go:build linux && !386 && !s390x

package hub

import (
	"syscall"
	"unsafe"
)

// writeNow writes what the socket takes without blocking. Nothing, without an error, means that it is full.
//
// The scheduler is not told: it would not have the time to give the processor to somebody else, and a broadcast makes
// thousands of these writes. For a socket sendto is the shorter way than write, which looks at what only files have.
func writeNow(fd int, p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)),
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

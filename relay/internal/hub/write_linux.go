//go:build linux && !386 && !s390x

package hub

import (
	"syscall"
	"unsafe"
)

// writeNow writes as much as the socket accepts without blocking. 0 bytes without an error mean that it is full.
//
// It bypasses Go's scheduler, which could not use the short wait, because a broadcast makes thousands of these writes.
// For sockets, sendto is a shorter path in the kernel than write.
func writeNow(fd int, p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p[0])),
			uintptr(len(p)),
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

// Package procpipe reads the remaining output of a process that has ended, with a deadline. Plugin processes, agents
// and redis-server use it.
//
// Handling of the output does not belong here.
package procpipe

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// maxDrained limits the bytes read after the deadline, so a process that never stops writing is abandoned. It is the
// maximum size of a pipe.
const maxDrained = 1 << 20

// Reader reads a pipe. After the deadline of the pipe it still returns the bytes that are already in the pipe, which
// os.File does not. It must not be used concurrently. The caller owns the pipe and may set its deadline at any time.
type Reader struct {
	pipe    *os.File
	drained int // bytes read after the deadline
}

// NewReader returns a Reader of the read end of an os.Pipe.
func NewReader(pipe *os.File) *Reader { return &Reader{pipe: pipe} }

// Read blocks until data arrives, the deadline has passed and the pipe is empty, or all writers have closed the pipe.
func (r *Reader) Read(b []byte) (int, error) {
	n, err := r.pipe.Read(b)
	if n > 0 || len(b) == 0 || !errors.Is(err, os.ErrDeadlineExceeded) || r.drained >= maxDrained {
		return n, err
	}
	conn, e := r.pipe.SyscallConn()
	if e != nil {
		return 0, err
	}
	// conn.Read would fail because of the deadline. A pipe with a deadline is in non-blocking mode.
	controlled := conn.Control(func(fd uintptr) {
		for n, e = syscall.Read(int(fd), b); errors.Is(e, syscall.EINTR); {
			n, e = syscall.Read(int(fd), b)
		}
	})
	switch {
	case controlled != nil || e != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	r.drained += n
	return n, nil
}

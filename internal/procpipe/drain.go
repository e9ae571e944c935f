package procpipe

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// maxDrained bounds what is read of a pipe behind its deadline: as much as one may hold. Who writes on for ever is
// left.
const maxDrained = 1 << 20

// Reader reads a pipe, and what lies in it already where the deadline has come before the reader, which Go would not
// look at. It is for one goroutine, and the pipe stays the caller's, who sets the deadline whenever it likes.
type Reader struct {
	pipe    *os.File
	drained int // bytes read behind the deadline
}

// NewReader returns a Reader of the end of a pipe that os.Pipe has made for reading.
func NewReader(pipe *os.File) *Reader { return &Reader{pipe: pipe} }

// Read blocks until there is something, the deadline has come and nothing is left, or nobody can write any more.
func (r *Reader) Read(b []byte) (int, error) {
	n, err := r.pipe.Read(b)
	if n > 0 || len(b) == 0 || !errors.Is(err, os.ErrDeadlineExceeded) || r.drained >= maxDrained {
		return n, err
	}
	conn, e := r.pipe.SyscallConn()
	if e != nil {
		return 0, err
	}
	// Not conn.Read, which ends with the deadline too. A pipe that has one does not block.
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

package embedded

import (
	"errors"
	"os"
	"time"
)

const (
	// lastWords is how long a server's output is waited for behind its end: a forked child that rewrites the append-only
	// file may hold the pipe open for long.
	lastWords = 100 * time.Millisecond
	// lastMost bounds what is read behind that, in bytes: as much as a pipe may hold.
	lastMost = 1 << 20
)

// lastWordsReader reads a pipe, and what lies in it already where the deadline has come before the reader, which Go would
// not look at.
type lastWordsReader struct {
	pipe   *os.File
	behind int // bytes read behind the deadline
}

func (r *lastWordsReader) Read(b []byte) (int, error) {
	n, err := r.pipe.Read(b)
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || r.behind >= lastMost {
		return n, err
	}
	if err := r.pipe.SetReadDeadline(time.Now().Add(lastWords)); err != nil {
		return 0, err
	}
	n, err = r.pipe.Read(b)
	r.behind += n
	return n, err
}

package filewatch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// timeout is the maximum time of a call of the file system. One on a network may not respond.
const timeout = time.Second

// errHanging is the error of a call that takes too long.
var errHanging = errors.New("the file system does not respond")

// hanging counts the calls for each file that exceed the timeout. It is global because such calls cannot be ended, and each
// further one would add a goroutine.
var hanging = hangingCalls{byName: make(map[string]int)}

type hangingCalls struct {
	mu     sync.Mutex
	byName map[string]int
}

func (h *hangingCalls) add(name string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byName[name] += n; h.byName[name] == 0 {
		delete(h.byName, name)
	}
}

func (h *hangingCalls) hasCallFor(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.byName[name] > 0
}

// callWithin calls f, which uses a file, with a time limit. It returns errHanging at once while an earlier call for the file exceeds
// the limit.
func callWithin[T any](name string, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if hanging.hasCallFor(name) {
		return none, errHanging
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-timer.C:
	}
	hanging.add(name, 1)
	go func() {
		<-done
		hanging.add(name, -1)
	}()
	return none, errHanging
}

// Stat is [os.Stat] with a time limit of one second.
func Stat(name string) (os.FileInfo, error) {
	return callWithin(name, func() (os.FileInfo, error) { return os.Stat(name) })
}

// ReadFile reads a regular file of at most 1 MiB, within a second. It rejects other files, such as pipes, because they may never
// end. Its errors follow the name of a setting. They do not contain the name of the file, which may be a secret by mistake.
func ReadFile(name string) ([]byte, error) {
	c, err := readFile(name)
	return c.data, err
}

// fileContent is the content of a file, and the FileInfo from before it was read.
type fileContent struct {
	info os.FileInfo
	data []byte
}

func readFile(name string) (fileContent, error) {
	c, err := callWithin(name, func() (fileContent, error) { return readFileNow(name) })
	if errors.Is(err, errHanging) {
		err = newReadError(err)
	}
	return c, err
}

// readFileNow calls Stat before it reads, so the next check detects a change made in between.
func readFileNow(name string) (c fileContent, err error) {
	// Without O_NONBLOCK, opening a pipe blocks until it has a writer.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return c, newReadError(err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return c, newReadError(err)
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return c, errors.New("does not name a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return c, newReadError(err)
	}
	if len(data) > maxFileBytes {
		return c, errors.New("names a file that is larger than 1 MiB")
	}
	return fileContent{info, data}, nil
}

func newReadError(err error) error {
	var pathErr *os.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	return fmt.Errorf("cannot be read: %w", err)
}

package httpclient

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// checkEvery bounds how often a file is looked at.
	checkEvery = time.Second
	// maxFile bounds what is read of one.
	maxFile = 1 << 20
)

// WatchedFile is a value in a file, such as a secret, read again when the file changes. It may be used concurrently.
type WatchedFile[T any] struct {
	name  string
	parse func([]byte) (T, error)
	log   *slog.Logger
	now   func() time.Time

	value   atomic.Pointer[T]
	checked atomic.Int64

	mu          sync.Mutex
	parsedInfo  os.FileInfo // of what was parsed last; nil where it could not be read
	lastProblem string      // with what is there now; empty where it is in use
}

// ReadFile reads a regular file of at most 1 MiB; what stands behind other names, such as a pipe, may never end.
func ReadFile(name string) ([]byte, error) {
	_, data, err := readFile(name)
	return data, err
}

// readFile says what the file was before it was read, so that a change in between is seen the next time.
func readFile(name string) (os.FileInfo, []byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // to open a pipe waits for who writes to it
	if err != nil {
		return nil, nil, fmt.Errorf("cannot be read: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot be read: %w", err)
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return nil, nil, errors.New("names no regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot be read: %w", err)
	}
	if len(data) > maxFile {
		return nil, nil, errors.New("names a file that is larger than 1 MiB")
	}
	return info, data, nil
}

// WatchFile reads the file and returns a File that looks at it again, at most once a second, whenever it is asked. No
// error of parse may repeat what the file holds. now is time.Now but for tests.
func WatchFile[T any](name string, parse func([]byte) (T, error), log *slog.Logger, now func() time.Time) (*WatchedFile[T], error) {
	f := &WatchedFile[T]{name: name, parse: parse, log: log, now: now}
	seen, value, err := f.read()
	if err != nil {
		return nil, err
	}
	f.parsedInfo = seen
	f.value.Store(&value)
	f.checked.Store(now().UnixNano())
	return f, nil
}

// read returns no FileInfo for a file that cannot be read, which may change without a trace in one.
func (f *WatchedFile[T]) read() (os.FileInfo, T, error) {
	info, data, err := readFile(f.name)
	if err != nil {
		var none T
		return nil, none, err
	}
	value, err := f.parse(data)
	return info, value, err
}

// Current returns what the file holds. A file that became bad keeps its last good value, so that an editor which writes
// in two steps, or a secret that is just being replaced, costs no delivery.
func (f *WatchedFile[T]) Current() T {
	now, last := f.now().UnixNano(), f.checked.Load()
	// A clock that was set back would keep the file from being looked at until it is as late as before.
	if since := now - last; (since >= int64(checkEvery) || since < 0) && f.checked.CompareAndSwap(last, now) {
		f.refresh()
	}
	return *f.value.Load()
}

func (f *WatchedFile[T]) refresh() {
	if !f.mu.TryLock() {
		return // what parses for long holds up nobody else
	}
	defer f.mu.Unlock()
	if info, err := os.Stat(f.name); err == nil && sameFile(info, f.parsedInfo) {
		return
	}
	before := f.parsedInfo
	seen, value, err := f.read()
	f.parsedInfo = seen
	if err == nil {
		f.lastProblem = ""
		f.value.Store(&value)
		f.log.Info("file read again", "file", f.name)
		return
	}
	if again := err.Error() == f.lastProblem && seen == nil && before == nil; !again {
		f.lastProblem = err.Error()
		f.log.Error("a file changed and is not usable; its last good content stays in use", "file", f.name, "error", err)
	}
}

// sameFile tells whether a file is that which was read: some tools give all files one time.
func sameFile(a, b os.FileInfo) bool {
	return b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

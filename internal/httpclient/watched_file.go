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
	// checkInterval is the minimum time between two checks of a file.
	checkInterval = time.Second
	// maxFileBytes is the maximum size of a file.
	maxFileBytes = 1 << 20
)

// WatchedFile is a value in a file, such as a secret, that is reloaded when the file changes. It is safe for concurrent
// use.
type WatchedFile[T any] struct {
	name  string
	parse func([]byte) (T, error)
	log   *slog.Logger
	now   func() time.Time

	value   atomic.Pointer[T]
	checked atomic.Int64

	mu          sync.Mutex
	parsedInfo  os.FileInfo // the file that was parsed last; nil if it could not be read
	lastProblem string      // the error of the current content; empty if the content is valid
}

// ReadFile reads a regular file of at most 1 MiB. It rejects other files, such as pipes, because they may never end.
func ReadFile(name string) ([]byte, error) {
	_, data, err := readFile(name)
	return data, err
}

// readFile calls Stat before it reads, so the next check detects a change made in between.
func readFile(name string) (os.FileInfo, []byte, error) {
	// Without O_NONBLOCK, opening a pipe blocks until it has a writer.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot be read: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot be read: %w", err)
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return nil, nil, errors.New("does not name a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot be read: %w", err)
	}
	if len(data) > maxFileBytes {
		return nil, nil, errors.New("names a file that is larger than 1 MiB")
	}
	return info, data, nil
}

// WatchFile reads the file and returns a WatchedFile. Current checks the file again, at most once per second. The
// errors of parse must not contain the content of the file. now is time.Now except in tests.
func WatchFile[T any](
	name string, parse func([]byte) (T, error), log *slog.Logger, now func() time.Time,
) (*WatchedFile[T], error) {
	f := &WatchedFile[T]{name: name, parse: parse, log: log, now: now}
	info, value, err := f.read()
	if err != nil {
		return nil, err
	}
	f.parsedInfo = info
	f.value.Store(&value)
	f.checked.Store(now().UnixNano())
	return f, nil
}

// read reads and parses the file. For an unreadable file it returns no FileInfo, because such a file can become
// readable without a change of its FileInfo.
func (f *WatchedFile[T]) read() (os.FileInfo, T, error) {
	info, data, err := readFile(f.name)
	if err != nil {
		var none T
		return nil, none, err
	}
	value, err := f.parse(data)
	return info, value, err
}

// Current returns the value in the file. If the file has become invalid, Current returns the last valid value: an
// editor that writes in two steps, or a secret that is being replaced, must not fail a delivery.
func (f *WatchedFile[T]) Current() T {
	now, last := f.now().UnixNano(), f.checked.Load()
	// Check also if the clock was set back. Otherwise the file would not be checked until the clock has caught up.
	if since := now - last; (since >= int64(checkInterval) || since < 0) && f.checked.CompareAndSwap(last, now) {
		f.refresh()
	}
	return *f.value.Load()
}

func (f *WatchedFile[T]) refresh() {
	if !f.mu.TryLock() {
		return // another goroutine is parsing; do not wait for it
	}
	defer f.mu.Unlock()
	if info, err := os.Stat(f.name); err == nil && sameFile(info, f.parsedInfo) {
		return
	}
	previous := f.parsedInfo
	info, value, err := f.read()
	f.parsedInfo = info
	if err == nil {
		f.lastProblem = ""
		f.value.Store(&value)
		f.log.Info("file reloaded", "path", f.name)
		return
	}
	if isRepeat := err.Error() == f.lastProblem && info == nil && previous == nil; !isRepeat {
		f.lastProblem = err.Error()
		f.log.Error("file reload failed", "path", f.name, "error", err)
	}
}

// sameFile reports whether a and b are the same unchanged file. It also compares the size, because some tools give all
// files the same time.
func sameFile(a, b os.FileInfo) bool {
	return b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

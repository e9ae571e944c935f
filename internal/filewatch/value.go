package filewatch

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
	// readTimeout is the maximum time to read a file. A file system on a network may not respond.
	readTimeout = time.Second
)

// hangingReads contains the names of the files whose read has exceeded readTimeout. Each has one goroutine until the read ends.
var hangingReads sync.Map

// errHanging is the error of a read that takes too long.
var errHanging = errors.New("cannot be read: the file system does not respond")

// Value is a value in a file, such as a secret, that is reloaded when the file changes. It is safe for concurrent
// use.
type Value[T any] struct {
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

// ReadFile reads a regular file of at most 1 MiB, within a second. It rejects other files, such as pipes, because they may never
// end.
func ReadFile(name string) ([]byte, error) {
	_, data, err := readFile(name)
	return data, err
}

// fileContent is the result of a read.
type fileContent struct {
	info os.FileInfo
	data []byte
	err  error
}

func readFile(name string) (os.FileInfo, []byte, error) {
	c := readWithin(readTimeout, name, func() fileContent {
		info, data, err := readFileNow(name)
		return fileContent{info, data, err}
	})
	return c.info, c.data, c.err
}

// readWithin calls read with a time limit.
func readWithin(timeout time.Duration, name string, read func() fileContent) fileContent {
	if _, isHanging := hangingReads.Load(name); isHanging {
		return fileContent{err: errHanging}
	}
	done := make(chan fileContent, 1)
	go func() { done <- read() }()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case c := <-done:
		return c
	case <-timer.C:
	}
	hangingReads.Store(name, true)
	go func() {
		<-done
		hangingReads.Delete(name)
	}()
	return fileContent{err: errHanging}
}

// readFileNow calls Stat before it reads, so the next check detects a change made in between.
func readFileNow(name string) (os.FileInfo, []byte, error) {
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

// Open reads a file and returns its value. Current checks the file again, at most once per second. The
// errors of parse must not contain the content of the file. now is time.Now except in tests.
func Open[T any](
	name string, parse func([]byte) (T, error), log *slog.Logger, now func() time.Time,
) (*Value[T], error) {
	v := &Value[T]{name: name, parse: parse, log: log, now: now}
	info, value, err := v.read()
	if err != nil {
		return nil, err
	}
	v.parsedInfo = info
	v.value.Store(&value)
	v.checked.Store(now().UnixNano())
	return v, nil
}

// read reads and parses the file. For an unreadable file it returns no FileInfo, because such a file can become
// readable without a change of its FileInfo.
func (v *Value[T]) read() (os.FileInfo, T, error) {
	info, data, err := readFile(v.name)
	if err != nil {
		var none T
		return nil, none, err
	}
	value, err := v.parse(data)
	return info, value, err
}

// Current returns the value in the file. If the file has become invalid, Current returns the last valid value: an
// editor that writes in two steps, or a secret that is being replaced, must not fail a delivery.
func (v *Value[T]) Current() T {
	now, last := v.now().UnixNano(), v.checked.Load()
	// Check also if the clock was set back. Otherwise the file would not be checked until the clock has caught up.
	if since := now - last; (since >= int64(checkInterval) || since < 0) && v.checked.CompareAndSwap(last, now) {
		v.reloadIfChanged()
	}
	return *v.value.Load()
}

func (v *Value[T]) reloadIfChanged() {
	if !v.mu.TryLock() {
		return // another goroutine is parsing; do not wait for it
	}
	defer v.mu.Unlock()
	if info, err := os.Stat(v.name); err == nil && IsSame(info, v.parsedInfo) {
		return
	}
	previous := v.parsedInfo
	info, value, err := v.read()
	v.parsedInfo = info
	if err == nil {
		v.lastProblem = ""
		v.value.Store(&value)
		v.log.Info("file reloaded", "path", v.name)
		return
	}
	if isRepeat := err.Error() == v.lastProblem && info == nil && previous == nil; !isRepeat {
		v.lastProblem = err.Error()
		v.log.Error("file reload failed", "path", v.name, "error", err)
	}
}

// IsSame reports whether a and b are the same unchanged file. It also compares the size, because some tools give all
// files the same time. A nil FileInfo is never the same.
func IsSame(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

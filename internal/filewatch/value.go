package filewatch

import (
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// checkInterval is the minimum time between two checks of a file.
	checkInterval = time.Second
	// maxFileBytes is the maximum size of a file.
	maxFileBytes = 1 << 20
)

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
	c, err := readFile(v.name)
	if err != nil {
		var none T
		return nil, none, err
	}
	value, err := v.parse(c.data)
	return c.info, value, err
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
	if info, err := Stat(v.name); err == nil && IsSame(info, v.parsedInfo) {
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

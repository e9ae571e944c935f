package egress

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// checkEvery bounds how often a file is looked at.
	checkEvery = time.Second
	// maxFile bounds what is read of one.
	maxFile = 1 << 20
)

// File is a value in a file, such as a secret, read again when the file changes. It may be used concurrently.
type File[T any] struct {
	name  string
	parse func([]byte) (T, error)
	log   *slog.Logger
	now   func() time.Time

	value   atomic.Pointer[T]
	checked atomic.Int64

	mu   sync.Mutex
	seen stamp
}

// stamp is what a file is known by.
type stamp struct {
	modified time.Time
	size     int64
}

// ReadFile reads a regular file of at most 1 MiB; what stands behind other names, such as a pipe, may never end.
func ReadFile(name string) ([]byte, error) {
	if info, err := os.Stat(name); err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		return nil, errors.New("names no regular file")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	if len(data) > maxFile {
		return nil, errors.New("names a file that is larger than 1 MiB")
	}
	return data, nil
}

// Follow reads the file and returns a File that looks at it again, at most once a second, whenever it is asked. No
// error of parse may repeat what the file holds. now is time.Now but for tests.
func Follow[T any](name string, parse func([]byte) (T, error), log *slog.Logger, now func() time.Time) (*File[T], error) {
	f := &File[T]{name: name, parse: parse, log: log, now: now}
	seen, value, err := f.read()
	if err != nil {
		return nil, err
	}
	f.seen = seen
	f.value.Store(&value)
	f.checked.Store(now().UnixNano())
	return f, nil
}

// read notes the file's time before it reads, so that a change in between is seen the next time.
func (f *File[T]) read() (stamp, T, error) {
	var seen stamp
	var none T
	if info, err := os.Stat(f.name); err == nil {
		seen = stamp{info.ModTime(), info.Size()}
	}
	data, err := ReadFile(f.name)
	if err != nil {
		return seen, none, err
	}
	value, err := f.parse(data)
	return seen, value, err
}

// Current returns what the file holds. A file that became bad keeps its last good value, so that an editor which writes
// in two steps, or a secret that is just being replaced, costs no delivery.
func (f *File[T]) Current() T {
	now, last := f.now().UnixNano(), f.checked.Load()
	// A clock that was set back would keep the file from being looked at until it is as late as before.
	if since := now - last; (since >= int64(checkEvery) || since < 0) && f.checked.CompareAndSwap(last, now) {
		f.refresh()
	}
	return *f.value.Load()
}

func (f *File[T]) refresh() {
	if !f.mu.TryLock() {
		return // what parses for long holds up nobody else
	}
	defer f.mu.Unlock()
	info, err := os.Stat(f.name)
	if err == nil && info.ModTime().Equal(f.seen.modified) && info.Size() == f.seen.size {
		return
	}
	seen, value, err := f.read()
	changed := !seen.modified.Equal(f.seen.modified) || seen.size != f.seen.size
	f.seen = seen
	switch {
	case err == nil:
		f.value.Store(&value)
		f.log.Info("file read again", "file", f.name)
	case changed:
		f.log.Error("a file changed and is not usable; its last good content stays in use", "file", f.name, "error", err)
	}
}

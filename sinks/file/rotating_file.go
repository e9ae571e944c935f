package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/DeRuina/timberjack"
	"github.com/hubrelay/hubrelay/internal/await"
)

const (
	mode = 0o640
	// lockEvery is the interval of attempts to lock a file that another process has locked.
	lockEvery = 5 * time.Millisecond
)

// rotatingFile is a file of lines. Each line is appended with one write, under a file lock that excludes other hubrelay
// writers, so lines stay complete and none is written to a renamed file. timberjack handles names, ages and compression
// of renamed files.
type rotatingFile struct {
	path    string
	refs    int // number of sinks; guarded by fileRegistry.mu
	desired atomic.Pointer[settings]

	writeSem        chan struct{}      // holds a token while no write is running
	rotator         *timberjack.Logger // writes nothing; nil before the first rotation
	rotatorSettings settings           // of the rotator
	file            *os.File           // nil before the first line, and after an error
	closed          bool
}

// settings configure writing and rotation.
type settings struct {
	maxSize         int64
	days, backups   int
	compress, fsync bool
}

func newRotatingFile(path string) *rotatingFile {
	l := &rotatingFile{path: path, writeSem: make(chan struct{}, 1)}
	l.writeSem <- struct{}{}
	return l
}

func (r *rotatingFile) currentSettings() settings { return *r.desired.Load() }
func (r *rotatingFile) set(s settings)            { r.desired.Store(&s) }

// rotateFile renames the file and handles older renamed files in the background. Only one process rotates at a time.
func (r *rotatingFile) rotateFile(s settings) error {
	if r.rotator != nil && s != r.rotatorSettings {
		if err := r.rotator.Close(); err != nil {
			return err
		}
		r.rotator = nil
	}
	if r.rotator == nil {
		compression := "none"
		if s.compress {
			compression = "gzip"
		}
		r.rotatorSettings = s
		r.rotator = &timberjack.Logger{
			Filename: r.path, MaxAge: s.days, MaxBackups: s.backups, Compression: compression, FileMode: mode,
		}
	}
	return r.rotator.RotateWithReason("size")
}

// write appends a line, which ends with a line break.
func (r *rotatingFile) write(ctx context.Context, line []byte) error {
	if ctx.Err() != nil {
		return timeoutError(ctx, "write "+r.path)
	}
	select {
	case <-r.writeSem:
	case <-ctx.Done():
		return timeoutError(ctx, "wait for another line to be written to "+r.path)
	}
	defer func() { r.writeSem <- struct{}{} }()
	if r.closed {
		return fmt.Errorf("write %s: %w", r.path, os.ErrClosed)
	}
	want := r.currentSettings()
	size, err := r.lock(ctx, want, int64(len(line)))
	if err != nil {
		r.closeFile()
		return err
	}
	if err = r.appendLine(line, size, want.fsync); err != nil {
		r.closeFile() // releases the lock, too
		return describeError(r.path, err)
	}
	return unlock(r.file)
}

// lock opens and locks the file at the path, rotates it unless it has room for that many bytes, and returns its size.
func (r *rotatingFile) lock(ctx context.Context, want settings, room int64) (int64, error) {
	for {
		if r.file == nil {
			if err := r.open(); err != nil {
				return 0, describeError(r.path, err)
			}
		}
		if err := r.lockFile(ctx); err != nil {
			return 0, err
		}
		here, err := r.file.Stat()
		if err != nil {
			return 0, describeError(r.path, err)
		}
		there, err := os.Stat(r.path)
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && !os.SameFile(here, there):
			r.closeFile() // it was renamed, by us or by logrotate
			continue
		case err != nil:
			return 0, describeError(r.path, err)
		case want.maxSize == 0, here.Size() == 0, here.Size()+room <= want.maxSize:
			return here.Size(), nil
		}
		err = r.rotateFile(want)
		r.closeFile()
		if err != nil {
			return 0, describeError(r.path, fmt.Errorf("create a new file: %w", err))
		}
	}
}

func (r *rotatingFile) open() error {
	// Opening something other than a file may block or have side effects.
	if info, err := os.Stat(r.path); err == nil {
		if err := checkRegular(r.path, info); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, mode)
	r.file = f
	return err
}

// lockFile waits until no other process or sink writes to the file.
func (r *rotatingFile) lockFile(ctx context.Context) error {
	for {
		err := controlFD(r.file, func(fd int) error { return syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) })
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return describeError(r.path, fmt.Errorf("lock the file: %w", err))
		}
		if !await.Duration(ctx, lockEvery) {
			return timeoutError(ctx, r.path+" is locked by another process")
		}
	}
}

func unlock(f *os.File) error {
	return controlFD(f, func(fd int) error { return syscall.Flock(fd, syscall.LOCK_UN) })
}

func controlFD(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = do(int(fd)) })
	return errors.Join(err, failed)
}

// appendLine writes the line at the end of a file of the given size. It first ends an incomplete line from a crash or
// another program.
func (r *rotatingFile) appendLine(line []byte, size int64, fsync bool) error {
	if size > 0 {
		var last [1]byte
		if _, err := r.file.ReadAt(last[:], size-1); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if last[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	n, err := r.file.Write(line)
	if err != nil {
		return errors.Join(err, r.truncateTail(size, int64(n)))
	}
	if fsync {
		return r.file.Sync()
	}
	return nil
}

// truncateTail removes n bytes after size, an incomplete line from a full disk, unless another writer has appended
// more.
func (r *rotatingFile) truncateTail(size, n int64) error {
	if info, err := r.file.Stat(); n == 0 || err != nil || info.Size() != size+n {
		return err
	}
	return r.file.Truncate(size)
}

// closeFile closes the file. The next line opens it again.
func (r *rotatingFile) closeFile() {
	if r.file != nil {
		_ = r.file.Close()
		r.file = nil
	}
}

func (r *rotatingFile) close() error {
	<-r.writeSem
	defer func() { r.writeSem <- struct{}{} }()
	r.closed = true
	r.closeFile()
	if r.rotator == nil {
		return nil
	}
	return r.rotator.Close()
}

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

func (l *rotatingFile) currentSettings() settings { return *l.desired.Load() }
func (l *rotatingFile) set(s settings)            { l.desired.Store(&s) }

// rotateFile renames the file and handles older renamed files in the background. Only one process rotates at a time.
func (l *rotatingFile) rotateFile(s settings) error {
	if l.rotator != nil && s != l.rotatorSettings {
		if err := l.rotator.Close(); err != nil {
			return err
		}
		l.rotator = nil
	}
	if l.rotator == nil {
		compression := "none"
		if s.compress {
			compression = "gzip"
		}
		l.rotatorSettings = s
		l.rotator = &timberjack.Logger{
			Filename: l.path, MaxAge: s.days, MaxBackups: s.backups, Compression: compression, FileMode: mode,
		}
	}
	return l.rotator.RotateWithReason("size")
}

// write appends a line, which ends with a line break.
func (l *rotatingFile) write(ctx context.Context, line []byte) error {
	if ctx.Err() != nil {
		return timeoutError(ctx, "write "+l.path)
	}
	select {
	case <-l.writeSem:
	case <-ctx.Done():
		return timeoutError(ctx, "wait for another line to be written to "+l.path)
	}
	defer func() { l.writeSem <- struct{}{} }()
	if l.closed {
		return fmt.Errorf("write %s: %w", l.path, os.ErrClosed)
	}
	want := l.currentSettings()
	size, err := l.lock(ctx, want, int64(len(line)))
	if err != nil {
		l.closeFile()
		return err
	}
	if err = l.appendLine(line, size, want.fsync); err != nil {
		l.closeFile() // releases the lock, too
		return describeError(l.path, err)
	}
	return unlock(l.file)
}

// lock opens and locks the file at the path, rotates it unless it has room for that many bytes, and returns its size.
func (l *rotatingFile) lock(ctx context.Context, want settings, room int64) (int64, error) {
	for {
		if l.file == nil {
			if err := l.open(); err != nil {
				return 0, describeError(l.path, err)
			}
		}
		if err := l.lockFile(ctx); err != nil {
			return 0, err
		}
		here, err := l.file.Stat()
		if err != nil {
			return 0, describeError(l.path, err)
		}
		there, err := os.Stat(l.path)
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && !os.SameFile(here, there):
			l.closeFile() // it was renamed, by us or by logrotate
			continue
		case err != nil:
			return 0, describeError(l.path, err)
		case want.maxSize == 0, here.Size() == 0, here.Size()+room <= want.maxSize:
			return here.Size(), nil
		}
		err = l.rotateFile(want)
		l.closeFile()
		if err != nil {
			return 0, describeError(l.path, fmt.Errorf("create a new file: %w", err))
		}
	}
}

func (l *rotatingFile) open() error {
	// Opening something other than a file may block or have side effects.
	if info, err := os.Stat(l.path); err == nil {
		if err := checkRegular(l.path, info); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, mode)
	l.file = f
	return err
}

// lockFile waits until no other process or sink writes to the file.
func (l *rotatingFile) lockFile(ctx context.Context) error {
	for {
		err := controlFD(l.file, func(fd int) error { return syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) })
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return describeError(l.path, fmt.Errorf("lock the file: %w", err))
		}
		if !await.Duration(ctx, lockEvery) {
			return timeoutError(ctx, l.path+" is locked by another process")
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
func (l *rotatingFile) appendLine(line []byte, size int64, fsync bool) error {
	if size > 0 {
		var last [1]byte
		if _, err := l.file.ReadAt(last[:], size-1); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if last[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	n, err := l.file.Write(line)
	if err != nil {
		return errors.Join(err, l.truncateTail(size, int64(n)))
	}
	if fsync {
		return l.file.Sync()
	}
	return nil
}

// truncateTail removes n bytes after size, an incomplete line from a full disk, unless another writer has appended
// more.
func (l *rotatingFile) truncateTail(size, n int64) error {
	if info, err := l.file.Stat(); n == 0 || err != nil || info.Size() != size+n {
		return err
	}
	return l.file.Truncate(size)
}

// closeFile closes the file. The next line opens it again.
func (l *rotatingFile) closeFile() {
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}

func (l *rotatingFile) close() error {
	<-l.writeSem
	defer func() { l.writeSem <- struct{}{} }()
	l.closed = true
	l.closeFile()
	if l.rotator == nil {
		return nil
	}
	return l.rotator.Close()
}

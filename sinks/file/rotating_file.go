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
	"github.com/hubrelay/hubrelay/relay"
)

const (
	mode = 0o640
	// lockEvery is the interval of attempts to lock a file that another process has locked.
	lockEvery = 5 * time.Millisecond
)

// rotatingFile is a file of lines. Each line is one write to the end of the file, under a file lock against other
// hubrelay writers. So lines stay complete, and no line is written to a renamed file. timberjack handles names, ages
// and compression of renamed files.
type rotatingFile struct {
	path    string
	refs    int // sinks, counted by files
	desired atomic.Pointer[settings]

	writeSem        chan struct{}      // holds a token while no write is running
	rotator         *timberjack.Logger // writes nothing; nil before the first rotation
	rotatorSettings settings           // what the rotator was made with
	file            *os.File           // nil before the first line, and after an error
	closed          bool
}

// settings are how lines are written.
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

// write appends a line with its end.
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
		l.closeFile() // and with it the lock
		return describeError(l.path, err)
	}
	return unlock(l.file)
}

// lock returns with the file open, locked, at the path, and with room for so many bytes; and its size.
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
			l.closeFile() // renamed, by us or by a logrotate
			continue
		case err != nil:
			return 0, describeError(l.path, err)
		case want.maxSize == 0, here.Size() == 0, here.Size()+room <= want.maxSize:
			return here.Size(), nil
		}
		err = l.rotateFile(want)
		l.closeFile()
		if err != nil {
			return 0, describeError(l.path, fmt.Errorf("begin a new file: %w", err))
		}
	}
}

func (l *rotatingFile) open() error {
	// One that is no file is not even opened: that may block, or do something.
	if info, err := os.Stat(l.path); err == nil {
		if err := checkRegular(l.path, info); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, mode)
	l.file = f
	return err
}

// lockFile waits until no other process, and no other sink, writes.
func (l *rotatingFile) lockFile(ctx context.Context) error {
	for {
		err := controlFD(l.file, func(fd int) error { return syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) })
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return describeError(l.path, fmt.Errorf("lock the file: %w", err))
		}
		if !relay.Sleep(ctx, lockEvery) {
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

// closeFile closes the file, which the next line opens again.
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

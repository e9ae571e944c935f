package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// lockName is the file in a socket directory that its owner has locked.
const lockName = "lock"

// maxRoot keeps the path of a socket below 104 bytes, the lowest limit of the systems. go-plugin adds two names.
const maxRoot = 32

// socketDir is a folder that only we can enter, for the sockets of one plugin.
type socketDir struct {
	path string
	lock *os.File
}

// newSocketDir creates a directory below root (empty: the system's temporary directory), and removes the directories of
// daemons that have ended.
func newSocketDir(root string) (*socketDir, error) {
	if root == "" {
		if root = os.TempDir(); len(root) > maxRoot {
			root = "/tmp"
		}
	}
	parent := filepath.Join(root, "hubrelay-plugins-"+strconv.Itoa(os.Getuid()))
	if err := ensurePrivateDir(parent); err != nil {
		return nil, err
	}
	removeStaleDirs(parent)
	for {
		path, err := os.MkdirTemp(parent, "") // 0700
		if err != nil {
			return nil, fmt.Errorf("create a directory for the plugin's socket: %w", err)
		}
		lock, err := tryLock(path)
		if err == nil {
			return &socketDir{path: path, lock: lock}, nil
		}
		if err = errors.Join(err, os.RemoveAll(path)); !errors.Is(err, errRemovedConcurrently) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

// ensurePrivateDir creates the directory, or checks that only this user has access, because another user may have
// created it.
func ensurePrivateDir(path string) error {
	if err := os.Mkdir(path, 0o700); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create a directory for the plugins' sockets: %w", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("check the directory of the plugins' sockets: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm() != 0o700 || !ok || int(owner.Uid) != os.Getuid() {
		return fmt.Errorf("%s is not a private directory of this user (mode 0700): remove it", path)
	}
	return nil
}

// removeStaleDirs removes the directories without a lock.
func removeStaleDirs(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(parent, e.Name())
		// One without a lock file is just being made, or was left between two steps; it is empty.
		lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(path)
		}
		_ = lock.Close()
	}
}

// errRemovedConcurrently means that another process found the directory before it was locked, and removes it.
var errRemovedConcurrently = errors.New("the directory was removed by another process")

func tryLock(path string) (*os.File, error) {
	name := filepath.Join(path, lockName)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) || err == nil && !stillExists(f, name) {
		err = errRemovedConcurrently
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// stillExists reports whether f is still the file with that name.
func stillExists(f *os.File, name string) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(name)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return os.SameFile(held, there)
}

func (s *socketDir) remove() {
	_ = os.RemoveAll(s.path)
	_ = s.lock.Close()
}

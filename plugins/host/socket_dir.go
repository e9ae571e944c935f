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

// lockName is the file that whoever uses a socket folder holds a lock on.
const lockName = "lock"

// maxRoot keeps a socket's path below 104 bytes, the least that systems allow: go-plugin adds two names of its own.
const maxRoot = 32

// socketDir is a folder that only we can enter, for the sockets of one plugin.
type socketDir struct {
	path string
	lock *os.File
}

// newSocketDir makes a folder below root (the system's folder for temporary files where empty), and removes those of
// daemons that are no more.
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
			return nil, fmt.Errorf("make a folder for the plugin's socket: %w", err)
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

// ensurePrivateDir makes the folder, or makes sure that it is ours alone: somebody else may have made it before.
func ensurePrivateDir(path string) error {
	if err := os.Mkdir(path, 0o700); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a folder for the plugins' sockets: %w", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("look at the folder of the plugins' sockets: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm() != 0o700 || !ok || int(owner.Uid) != os.Getuid() {
		return fmt.Errorf("%s is not a folder that belongs to us alone (mode 0700): remove it", path)
	}
	return nil
}

// removeStaleDirs removes the folders that nobody holds.
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

// errRemovedConcurrently says that somebody else's sweep has found the lock before it was held, and removes the folder.
var errRemovedConcurrently = errors.New("the folder was removed by another start")

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

// stillExists tells whether f is still the file of that name.
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

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

// maxRoot keeps the path of a socket below 104 bytes, the lowest limit of all systems. go-plugin adds two names.
const maxRoot = 32

// socketDir is a private directory for the sockets of one plugin.
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
	path, err := os.MkdirTemp(parent, "") // 0700
	if err != nil {
		return nil, fmt.Errorf("create a directory for the socket of the plugin: %w", err)
	}
	lock, err := lockDir(path)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, errors.Join(err, os.RemoveAll(path)))
	}
	return &socketDir{path: path, lock: lock}, nil
}

// ensurePrivateDir creates the directory, or checks that only this user has access, because another user may have
// created it.
func ensurePrivateDir(path string) error {
	if err := os.Mkdir(path, 0o700); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create a directory for sockets of plugins: %w", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("check the directory for sockets of plugins: %w", err)
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
		// A directory without a lock file is being created, or was left by an interrupted creation and has no socket.
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

// lockDir locks the lock file of a new directory before the file gets its name, so removeStaleDirs of another process
// never finds it without a lock.
func lockDir(path string) (*os.File, error) {
	f, err := os.CreateTemp(path, "new-")
	if err != nil {
		return nil, err
	}
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		err = os.Rename(f.Name(), filepath.Join(path, lockName))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (s *socketDir) remove() {
	_ = os.RemoveAll(s.path)
	_ = s.lock.Close()
}

package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// maxDirs is the maximum number of concurrent demos per user.
const maxDirs = 16

// claimedDir is a directory that one demo has locked.
type claimedDir struct {
	path string
	lock *os.File
}

// claimDir locks the first free directory below base. The names are fixed, so a demo finds and stops the redis-server
// of an earlier one that was killed.
func claimDir(base string) (*claimedDir, error) {
	for n := range maxDirs {
		path := filepath.Join(base, fmt.Sprintf("hubrelay-demo-%d", os.Getuid()))
		if n > 0 {
			path += fmt.Sprintf("-%d", n+1)
		}
		lock, err := tryLockDir(path)
		if err != nil {
			return nil, fmt.Errorf("create directory of the demo: %w", err)
		}
		if lock != nil {
			return &claimedDir{path: path, lock: lock}, nil
		}
	}
	return nil, fmt.Errorf("%d demos are running: stop one", maxDirs)
}

// tryLockDir locks a file in the directory, or returns nil if another process has locked it. The kernel releases the
// lock when the process ends.
func tryLockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "demo.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // another demo just removed it
	}
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		// The file may have been removed since it was opened.
		if locked, statErr := f.Stat(); statErr == nil {
			if current, statErr := os.Stat(f.Name()); statErr == nil && os.SameFile(locked, current) {
				return f, nil
			}
		}
		err = syscall.EWOULDBLOCK
	}
	_ = f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, err
}

// remove deletes the directory, then releases the lock.
func (c *claimedDir) remove() {
	_ = os.RemoveAll(c.path)
	_ = c.lock.Close()
}

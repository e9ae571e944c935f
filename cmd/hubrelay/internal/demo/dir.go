package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// maxDirs is how many demos of one user may run at once.
const maxDirs = 16

// claimedDir is a folder that one demo holds.
type claimedDir struct {
	path string
	lock *os.File
}

// claimDir takes the first folder under base that no other demo holds. The names are fixed, so that a demo takes over
// the redis-server of one that was killed instead of leaving it behind for good.
func claimDir(base string) (*claimedDir, error) {
	for n := range maxDirs {
		path := filepath.Join(base, fmt.Sprintf("hubrelay-demo-%d", os.Getuid()))
		if n > 0 {
			path += fmt.Sprintf("-%d", n+1)
		}
		lock, err := tryLockDir(path)
		if err != nil {
			return nil, fmt.Errorf("make the demo's folder: %w", err)
		}
		if lock != nil {
			return &claimedDir{path: path, lock: lock}, nil
		}
	}
	return nil, fmt.Errorf("%d demos run already: stop one", maxDirs)
}

// tryLockDir locks a file in the folder, or returns nil where another process has. The kernel lets go of it when the
// process ends, however it ends.
func tryLockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "demo.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // removed in between by the demo that held it
	}
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		// What was locked may have been removed since it was opened.
		if held, statErr := f.Stat(); statErr == nil {
			if now, statErr := os.Stat(f.Name()); statErr == nil && os.SameFile(held, now) {
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

// remove deletes the folder while it is still held.
func (f *claimedDir) remove() {
	_ = os.RemoveAll(f.path)
	_ = f.lock.Close()
}

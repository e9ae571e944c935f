package directory

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The agent's own files in the instance's folder, which do not move with the instance.
const (
	agentFilePrefix = ".keeper."
	fileLock        = agentFilePrefix + "lock"
	fileAgentState  = agentFilePrefix + "json"
)

// Unlike flock, a record lock can be queried without taking it, is not inherited by children, and works over NFS.
func wholeFile() *unix.Flock_t { return &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart} }

// takeLock takes the agent's lock, or says that another has it. The lock is gone when the file is closed.
func takeLock(path string) (f *os.File, taken bool, err error) {
	f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, false, err
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, wholeFile())
	if err == nil {
		return f, true, nil
	}
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		err = nil
	}
	return nil, false, cmp.Or(err, f.Close())
}

// AgentRunning reports whether an agent works in the directory of an instance, even if the directory was moved.
func AgentRunning(home string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(home, fileLock), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l := wholeFile()
	err = unix.FcntlFlock(f.Fd(), unix.F_GETLK, l)
	return err == nil && l.Type != unix.F_UNLCK, cmp.Or(err, f.Close())
}

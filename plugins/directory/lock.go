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

// Files of the agent in the instance's directory. A migration does not copy them.
const (
	agentFilePrefix = ".keeper."
	fileLock        = agentFilePrefix + "lock"
	fileAgentState  = agentFilePrefix + "json"
)

// wholeFile returns a record lock on a whole file. Unlike with flock, a process can query it without taking it,
// children do not inherit it, and it works over NFS.
func wholeFile() *unix.Flock_t { return &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart} }

// takeLock tries to take the agent's lock. taken is false if another process has it. Closing the file releases the
// lock.
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

// AgentRunning reports whether an agent is running in the directory of an instance, even if the directory was renamed.
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

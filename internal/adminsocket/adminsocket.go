// Package adminsocket opens, protects and finds the unix socket of the admin listener.
//
// The socket has mode 0600, and only processes of the daemon's user and of root may connect. The daemon checks the user of
// every connection, so a wrong mode or a shared directory opens nothing.
package adminsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// FileName is the name of the socket in redis.data_dir.
const FileName = "admin.sock"

// maxPathBytes is the longest path of a unix socket that every supported system accepts.
const maxPathBytes = 100

// location is a place for the socket.
type location struct {
	dir, name string
	private   bool // the directory is ours alone
}

func (l location) path() string { return filepath.Join(l.dir, l.name) }

// listLocations lists the places for the socket in the order of preference: the data directory, then a private directory under
// $XDG_RUNTIME_DIR, /run and the temporary directory. There the name contains the port of the health listener, so relays of
// the same user do not meet.
func listLocations(dataDir, healthListen string) []location {
	list := []location{{dir: dataDir, name: FileName}}
	name := FileName
	if _, port, err := net.SplitHostPort(healthListen); err == nil {
		name = "admin-" + port + ".sock"
	}
	own := "hubrelay-" + strconv.Itoa(os.Geteuid())
	for _, base := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/run", os.TempDir()} {
		if base != "" {
			list = append(list, location{dir: filepath.Join(base, own), name: name, private: true})
		}
	}
	return list
}

// Find returns the path of the socket of a relay with this redis.data_dir and health.listen. The error lists the places it tried.
// A socket of another user is skipped, unless the caller is root.
func Find(dataDir, healthListen string) (string, error) {
	var tried []error
	for _, l := range listLocations(dataDir, healthListen) {
		path, err := filepath.Abs(l.path())
		if err == nil {
			err = checkSocket(path)
		}
		if err == nil {
			return path, nil
		}
		tried = append(tried, err)
	}
	return "", errors.Join(tried...)
}

func checkSocket(path string) error {
	info, err := os.Lstat(path)
	var failed *fs.PathError
	switch {
	case errors.As(err, &failed):
		return fmt.Errorf("%s: %w", path, failed.Err)
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s: not a socket", path)
	case !isTrusted(info) && os.Geteuid() != 0:
		return fmt.Errorf("%s: belongs to another user", path)
	}
	return nil
}

// isTrusted reports whether a file belongs to our user or to root.
func isTrusted(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (stat.Uid == 0 || int(stat.Uid) == os.Geteuid())
}

// Listen opens the socket in the first place that can be used. The daemon must know the real port of healthListen by then.
// It replaces the socket of a relay that was killed, and skips a place that a running relay uses.
func Listen(dataDir, healthListen string, log *slog.Logger) (net.Listener, error) {
	var tried []error
	for _, l := range listLocations(dataDir, healthListen) {
		listener, err := openAt(l, log)
		if err == nil {
			return listener, nil
		}
		tried = append(tried, err)
	}
	return nil, fmt.Errorf("open the admin socket, set admin.listen and admin.tokens to use TCP instead: %w", errors.Join(tried...))
}

func openAt(l location, log *slog.Logger) (net.Listener, error) {
	path, err := filepath.Abs(l.path())
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", l.path(), err)
	}
	if len(path) > maxPathBytes {
		return nil, fmt.Errorf("%s is too long for a unix socket", path)
	}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return nil, err
	}
	if l.private {
		if err := checkPrivate(l.dir); err != nil {
			return nil, err
		}
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, err
	}
	listener, err := bindSocket(path)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return &peerListener{Listener: listener, lock: lock, log: log}, nil
}

// checkPrivate refuses a directory that another user prepared or may enter.
func checkPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is not a directory that only we may enter (mode 0700)", dir)
	}
	return nil
}

// lockFile takes the lock that a relay holds as long as it listens. The kernel releases it when the process ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s is locked by another relay: %w", path, err)
	}
	return f, nil
}

func bindSocket(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return listener, nil
}

// peerListener accepts connections of our user and of root, and closes all others.
type peerListener struct {
	net.Listener
	lock  *os.File
	log   *slog.Logger
	close sync.Once
}

// Accept returns the next connection of a permitted user.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(conn)
		if err == nil && (uid == 0 || uid == os.Geteuid()) {
			return conn, nil
		}
		l.log.Warn("admin connection refused", "uid", uid, "error", err)
		_ = conn.Close()
	}
}

// Close removes the socket and releases its lock. It may be called twice.
func (l *peerListener) Close() error {
	err := l.Listener.Close()
	l.close.Do(func() { _ = l.lock.Close() })
	return err
}

// peerUID returns the user of the process at the other end of a unix socket.
func peerUID(conn net.Conn) (int, error) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("%T is not a socket", conn)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return -1, err
	}
	uid := -1
	var failed error
	if err := raw.Control(func(fd uintptr) { uid, failed = readPeerUID(int(fd)) }); err != nil {
		return -1, err
	}
	return uid, failed
}

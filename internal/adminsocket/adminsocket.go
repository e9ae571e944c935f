// Package adminsocket opens, protects and finds the unix socket of the admin listener.
//
// The socket has mode 0600, and only processes of the daemon's user and of root may connect. The daemon checks the user
// of every connection, so a wrong mode or a shared directory does not give access to other users.
//
// Roles, tokens and handlers belong to relay/internal/adminserver.
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
	private   bool // no other user may access dir
}

func (l location) path() string { return filepath.Join(l.dir, l.name) }

// listLocations returns the locations for the socket in order of preference: the data directory, then a private
// directory under $XDG_RUNTIME_DIR, /run and the temporary directory. Names in private directories contain the port of
// the health listener, so relays of the same user do not conflict.
func listLocations(dataDir, healthListen string) []location {
	list := []location{{dir: dataDir, name: FileName}}
	name := "admin-" + portOf(healthListen) + ".sock"
	own := "hubrelay-" + strconv.Itoa(os.Geteuid())
	for _, base := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/run", os.TempDir()} {
		if base != "" && isBaseTrusted(base) {
			list = append(list, location{dir: filepath.Join(base, own), name: name, private: true})
		}
	}
	return list
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// isBaseTrusted reports whether only our user and root can rename entries of a directory.
func isBaseTrusted(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && isTrusted(info) && (info.Mode()&fs.ModeSticky != 0 || info.Mode().Perm()&0o022 == 0)
}

// Target describes the relay that a command looks for.
type Target struct {
	DataDir, HealthListen string
	// Configured is set if both come from a configuration that the user named. Then a socket in DataDir may belong to
	// the owner of DataDir.
	Configured bool
}

// Find returns the path of the socket of a running relay. The error lists the locations that it tried. Find skips
// sockets of other users, because they could impersonate the relay. If several relays share DataDir, Find prefers the
// one with this health listener.
func Find(t Target) (string, error) {
	var tried []error
	other := "" // a relay with another health listener, which an environment variable of the daemon may have set
	for _, l := range listLocations(t.DataDir, t.HealthListen) {
		path, err := filepath.Abs(l.path())
		if err == nil {
			err = t.checkSocket(l, path)
		}
		switch {
		case err == nil && (l.private || t.hasLock(path)):
			return path, nil
		case err == nil:
			other = path
			continue
		}
		var failed *fs.PathError
		if errors.As(err, &failed) {
			err = failed.Err
		}
		tried = append(tried, fmt.Errorf("%s: %w", path, err))
	}
	if other != "" {
		return other, nil
	}
	return "", errors.Join(tried...)
}

// hasLock reports whether the lock file of a socket contains the port of our health listener.
func (t Target) hasLock(path string) bool {
	text, err := os.ReadFile(path + lockSuffix)
	return err == nil && string(text) == portOf(t.HealthListen)
}

func (t Target) checkSocket(l location, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("not a socket")
	}
	if l.private {
		return checkPrivate(l.dir)
	}
	if isTrusted(info) || t.Configured && haveSameOwner(path, l.dir) {
		return nil
	}
	return errors.New("belongs to another user")
}

func haveSameOwner(a, b string) bool {
	first, err1 := os.Lstat(a)
	second, err2 := os.Lstat(b)
	if err1 != nil || err2 != nil {
		return false
	}
	one, ok1 := first.Sys().(*syscall.Stat_t)
	two, ok2 := second.Sys().(*syscall.Stat_t)
	return ok1 && ok2 && one.Uid == two.Uid && second.Mode().Perm()&0o022 == 0
}

// isTrusted reports whether a file belongs to our user or to root.
func isTrusted(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (stat.Uid == 0 || int(stat.Uid) == os.Geteuid())
}

// Listen opens the socket at the first usable location. healthListen must contain the actual port of the listener.
// Listen replaces the socket of a relay that was killed, and skips a location that a running relay uses. If no location
// is usable, it creates the socket in a new temporary directory, where commands find it only by its path.
func Listen(dataDir, healthListen string, log *slog.Logger) (net.Listener, error) {
	var tried []error
	locations := listLocations(dataDir, healthListen)
	for _, l := range locations {
		listener, err := openAt(l, portOf(healthListen), log)
		if err == nil {
			return listener, nil
		}
		tried = append(tried, err)
	}
	dir, err := os.MkdirTemp("", "hubrelay-")
	if err == nil {
		var listener net.Listener
		l := location{dir: dir, name: FileName, private: true}
		if listener, err = openAt(l, portOf(healthListen), log); err == nil {
			return listener, nil
		}
	}
	return nil, fmt.Errorf("open the admin socket, set admin.listen and admin.tokens to use TCP instead: %w",
		errors.Join(append(tried, err)...))
}

// openAt opens the socket at a location. The lock file contains the port of the health listener, by which commands
// distinguish relays.
func openAt(l location, port string, log *slog.Logger) (net.Listener, error) {
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
	lock, err := lockFile(path + lockSuffix)
	if err != nil {
		return nil, err
	}
	err = lock.Truncate(0)
	if err == nil {
		_, err = lock.WriteString(port)
	}
	var listener net.Listener
	if err == nil {
		listener, err = bindSocket(path)
	}
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return &peerListener{Listener: listener, lock: lock, log: log}, nil
}

// lockSuffix is appended to the path of a socket to get the path of its lock file.
const lockSuffix = ".lock"

// checkPrivate rejects a directory that belongs to another user or that other users may access.
func checkPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is not a directory of this user with mode 0700", dir)
	}
	return nil
}

// lockFile takes the lock that a relay holds while it listens. The kernel releases the lock when the process ends.
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
		uid, err := PeerUID(conn)
		if err == nil && (uid == 0 || uid == os.Geteuid()) {
			return conn, nil
		}
		l.log.Warn("admin connection rejected", "uid", uid, "error", err)
		_ = conn.Close()
	}
}

// Close removes the socket and releases its lock. It may be called twice.
func (l *peerListener) Close() error {
	err := l.Listener.Close()
	l.close.Do(func() { _ = l.lock.Close() })
	return err
}

// PeerUID returns the user of the process at the other end of a unix socket.
func PeerUID(conn net.Conn) (int, error) {
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

package embeddedredis

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// lockDir locks the directory for this process. The kernel releases the lock when the process ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("the file lock in the data directory %s is a symbolic link: remove it", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("open the lock of the data directory %s: %w", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer func() { _ = f.Close() }()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the data directory %s: %w", dir, err)
		}
		holder := "another process"
		if pid, err := io.ReadAll(io.LimitReader(f, 32)); err == nil && len(pid) > 0 {
			holder = "process " + strings.TrimSpace(string(pid))
		}
		return nil, fmt.Errorf("the data directory %s is in use by %s: stop it or choose another redis.data_dir",
			dir, holder)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("write the lock of the data directory %s: %w", dir, err)
	}
	return f, nil
}

// socketPath returns a path in the directory. If that is too long for a socket address, it returns a path in a
// private directory whose name is derived from dir.
func socketPath(dir string) (string, error) {
	path := filepath.Join(dir, "redis.sock")
	if len(path) <= maxSocketBytes {
		return path, nil
	}
	sum := sha256.Sum256([]byte(dir))
	name := "hubrelay-" + hex.EncodeToString(sum[:8])
	var errs []error
	for _, base := range []string{"/run", os.TempDir()} {
		path := filepath.Join(base, name, "redis.sock")
		if len(path) > maxSocketBytes {
			continue
		}
		err := ensurePrivateDir(filepath.Dir(path))
		if err == nil {
			return path, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("the path of the data directory %s is too long for a unix socket, "+
		"choose a shorter redis.data_dir: %w", dir, errors.Join(errs...))
}

// ensurePrivateDir creates a directory that only this user can enter, and rejects a directory of another user.
func ensurePrivateDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(stat.Uid) != os.Getuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is not a directory of this user with mode 0700", dir)
	}
	return nil
}

// checkSocketOwner rejects a socket of another user, who may have write access to the directory.
func checkSocketOwner(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != os.Getuid() || info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("the socket %s belongs to another user: stop the process that listens there, "+
			"remove the socket, and protect the directory (chmod 700)", path)
	}
	return nil
}

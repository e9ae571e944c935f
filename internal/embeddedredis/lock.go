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

// lockDir holds the folder for this process. The kernel lets go of it when the process ends, however it ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("the file lock in the data folder %s is a symbolic link: remove it", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("the data folder %s is not writable: %w", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer func() { _ = f.Close() }()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the data folder %s: %w", dir, err)
		}
		holder := "another process"
		if pid, err := io.ReadAll(io.LimitReader(f, 32)); err == nil && len(pid) > 0 {
			holder = "process " + strings.TrimSpace(string(pid))
		}
		return nil, fmt.Errorf("the data folder %s is in use by %s: stop that one or choose another redis.data_dir", dir, holder)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("the data folder %s cannot be written to: %w", dir, err)
	}
	return f, nil
}

// socketPath is in the folder, or where that path is too long for a socket's address in a folder that follows from it.
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
	return "", fmt.Errorf("the path of the data folder %s is too long for a unix socket, and there is no other place for one: %w",
		dir, errors.Join(errs...))
}

// ensurePrivateDir makes a folder that only we can enter, and refuses one that somebody else prepared.
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
		return fmt.Errorf("%s is not a folder of our own with mode 0700", dir)
	}
	return nil
}

// checkSocketOwner refuses a socket that somebody else made in a folder that others may write to.
func checkSocketOwner(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != os.Getuid() || info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("the socket %s belongs to another user: stop what listens there, remove it, and keep others out of the folder (chmod 700)", path)
	}
	return nil
}

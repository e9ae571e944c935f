package directory

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// copyMetadata copies owner, attributes, mode and time to an open file or directory with this name in dirFD. The order
// matters: a new owner clears capabilities and set-user-ID bits, and a read-only file accepts no attributes.
func copyMetadata(src, dst *os.File, dirFD int, name, path string, st *unix.Stat_t) error {
	fd := int(dst.Fd())
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil {
		return writeError(path, err)
	}
	if now.Uid != st.Uid || now.Gid != st.Gid {
		if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil {
			return ownershipError(path, st, err)
		}
	}
	if err := copyAttributes(src, dst, path); err != nil {
		return err
	}
	//nolint:unconvert // st.Mode has 16 bits on other systems
	if err := unix.Fchmod(fd, uint32(st.Mode)&0o7777); err != nil {
		return writeError(path, err)
	}
	return setTime(dirFD, name, path, st)
}

func setTime(dirFD int, name, path string, st *unix.Stat_t) error {
	if err := unix.UtimesNanoAt(dirFD, name, []unix.Timespec{st.Mtim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return writeError(path, err)
	}
	return nil
}

func ownershipError(path string, st *unix.Stat_t, err error) error {
	return fmt.Errorf(
		"%s belongs to user %d and group %d, but only root can preserve the owner; "+
			"run hubrelay as root, or change the owner: %w",
		path, st.Uid, st.Gid, err,
	)
}

func copySymlink(p *dirPair, name, path string, st *unix.Stat_t) error {
	target, err := readLinkAt(int(p.src.Fd()), name)
	if err != nil {
		return sourceChanged(path, err)
	}
	dst := int(p.dst.Fd())
	if err := unix.Symlinkat(target, dst, name); err != nil {
		return writeError(path, err)
	}
	return finishAt(dst, name, path, st)
}

func readLinkAt(dirFD int, name string) (string, error) {
	b := make([]byte, 4097) // longer than any target
	n, err := unix.Readlinkat(dirFD, name, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// copyFIFO creates a FIFO of the same name. Unread data is lost, as it is when the processes that use the FIFO end.
func copyFIFO(t *treeCopy, p *dirPair, name, path string, st *unix.Stat_t) error {
	if err := unix.Mkfifo(filepath.Join(t.root, path), 0o600); err != nil {
		return writeError(path, t.v.destination.supersededError(err))
	}
	//nolint:unconvert // st.Mode has 16 bits on other systems
	if err := unix.Fchmodat(int(p.dst.Fd()), name, uint32(st.Mode)&0o7777, 0); err != nil {
		return writeError(path, err)
	}
	return finishAt(int(p.dst.Fd()), name, path, st)
}

// finishAt sets the owner and the time of an entry that cannot be opened.
func finishAt(dirFD int, name, path string, st *unix.Stat_t) error {
	err := unix.Fchownat(dirFD, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return ownershipError(path, st, err)
	}
	return setTime(dirFD, name, path, st)
}

// copyAttributes copies extended attributes, including access control lists and capabilities.
func copyAttributes(src, dst *os.File, path string) error {
	var few [512]byte
	names := few[:]
	n, err := unix.Flistxattr(int(src.Fd()), names)
	if errors.Is(err, unix.ERANGE) {
		names = make([]byte, 64<<10) // the maximum size of a list on Linux
		n, err = unix.Flistxattr(int(src.Fd()), names)
	}
	if errors.Is(err, unix.ENOTSUP) || n == 0 && err == nil {
		return nil
	}
	if err != nil {
		return sourceChanged(path, err)
	}
	value := make([]byte, 64<<10)
	for name := range bytes.SplitSeq(bytes.TrimSuffix(names[:n], []byte{0}), []byte{0}) {
		attr := string(name)
		if attr == "security.selinux" { // the destination assigns its own labels
			continue
		}
		n, err := unix.Fgetxattr(int(src.Fd()), attr, value)
		if err != nil {
			return sourceChanged(path, err)
		}
		if err := unix.Fsetxattr(int(dst.Fd()), attr, value[:n], 0); err != nil {
			return fmt.Errorf(
				"%s has the extended attribute %s, which the destination does not accept; remove it, or choose "+
					"another server: %w", path, attr, err,
			)
		}
	}
	return nil
}

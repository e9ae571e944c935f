package directory

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkOwner rejects a file or directory that another user could change. It must belong to this user or root, and only
// its owner may write to it, because the contents of a server's directory run as this user.
func checkOwner(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("the owner of %s is unknown", path)
	}
	if uid := int(stat.Uid); uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d; change its owner to user %d, which runs hubrelay, or to root",
			path, uid, os.Geteuid())
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("%s has mode %04o, so other users can write to it; run chmod go-w on it", path, mode)
	}
	return nil
}

// checkOwnerAt calls checkOwner for the file or directory at a path. It follows symbolic links.
func checkOwnerAt(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return checkOwner(path, info)
}

package directory

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncAll waits until everything written to the file system of f is on its disk, and reports write errors.
func syncAll(f *os.File) error { return unix.Syncfs(int(f.Fd())) }

package directory

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncAll waits until everything written to the file system of a file is on its disk, and tells what could not be.
func syncAll(f *os.File) error { return unix.Syncfs(int(f.Fd())) }

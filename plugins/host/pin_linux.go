package host

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// openPinned copies a program to sealed memory, and compares the copy with its pin. Running the copy
// leaves no time in which the file could be replaced after the comparison. It returns nil for a script, because its
// interpreter needs the name of the file: a script is compared and then run by name.
func openPinned(program, sum string) (_ *os.File, err error) {
	f, err := openRegular(program, "sha256")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var start [2]byte
	if n, _ := f.ReadAt(start[:], 0); bytes.Equal(start[:n], []byte("#!")) {
		return nil, checkPin(program, sum, "sha256")
	}
	fd, err := unix.MemfdCreate(filepath.Base(program), unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3, which has no MFD_EXEC
		fd, err = unix.MemfdCreate(filepath.Base(program), unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("run %s from memory, which sha256 needs: %w", program, err)
	}
	writable := os.NewFile(uintptr(fd), program)
	defer func() { _ = writable.Close() }()
	if err := comparePin(program, io.TeeReader(f, writable), sum, "sha256"); err != nil {
		return nil, err
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(writable.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal the copy of %s: %w", program, err)
	}
	// A file that is open for writing cannot be executed.
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", writable.Fd()))
}

package host

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// KillWithParent kills the process when the daemon is killed, even if it ignores its standard input. The starting
// thread must live as long as the process.
func KillWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// limitMemory limits the memory that a process may allocate. It does not limit reserved address space, of which Go uses
// much.
func limitMemory(pid int, limit int64) error {
	if limit <= 0 {
		return nil
	}
	r := &unix.Rlimit{Cur: uint64(limit), Max: uint64(limit)}
	if err := unix.Prlimit(pid, unix.RLIMIT_DATA, r, nil); err != nil {
		return fmt.Errorf("memory_limit: prlimit: %w", err)
	}
	return nil
}

package host

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// KillWithParent kills the process when we are killed, also one that does not look at its standard input. The thread that starts it
// must live as long as it does.
func KillWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// limitMemory bounds what a process may allocate. Address space alone, of which Go and others reserve much, is free.
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

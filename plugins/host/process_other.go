//go:build !linux

package host

import (
	"errors"
	"syscall"
)

// KillWithParent does nothing on this system. The end of the standard input has to suffice.
func KillWithParent(*syscall.SysProcAttr) {}

func limitMemory(_ int, limit int64) error {
	if limit <= 0 {
		return nil
	}
	return errors.New("memory_limit has no effect: this system has no prlimit")
}

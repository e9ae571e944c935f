//go:build unix

package daemon

import (
	"math"
	"syscall"
)

// openFiles is how many files this process may have open, which Go has raised as far as it may go; 0 where there is no
// limit.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return 0
	}
	return int(limit.Cur)
}

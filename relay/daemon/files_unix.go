//go:build unix

package daemon

import (
	"math"
	"syscall"
)

// openFiles returns the limit of open files of this process, or 0 if it is unlimited. The Go runtime has raised
// the soft limit to the hard limit.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return 0
	}
	return int(limit.Cur)
}

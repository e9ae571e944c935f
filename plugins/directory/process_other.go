//go:build !linux

package directory

import (
	"syscall"
	"time"
)

// dieWithKeeper can do nothing here: a command outlives a keeper that is killed.
func dieWithKeeper(*syscall.SysProcAttr) {}

// keepFiles has nothing to do for the files that Go has opened, which are all of them here.
func keepFiles() {}

// ended tells whether our child has ended. Only whoever waits for it and closes done can know, and gets a moment to say so.
func ended(_ int, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-time.After(lookEvery):
		return false
	}
}

// groupRuns tells whether there are processes of the group, those included that nobody has waited for.
func groupRuns(group int) bool { return syscall.Kill(-group, 0) == nil }

//go:build !linux

package directory

import "syscall"

// dieWithKeeper can do nothing here: a command outlives a keeper that is killed.
func dieWithKeeper(*syscall.SysProcAttr) {}

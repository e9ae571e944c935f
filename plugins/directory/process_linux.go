package directory

import (
	"math"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithKeeper kills the command when its keeper is killed: what runs has a keeper, by which it can be stopped.
func dieWithKeeper(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// keepFiles sees to it that a program we start gets no file of ours, those included that we were started with.
func keepFiles() { _ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) }

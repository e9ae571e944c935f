package directory

import "syscall"

// dieWithKeeper kills the command when its keeper is killed: what runs has a keeper, by which it can be stopped.
func dieWithKeeper(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

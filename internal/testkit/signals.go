package testkit

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// handleInheritedSignals lets programs start with the default dispositions of SIGHUP and SIGINT. Under nohup, the
// process of the tests ignores SIGHUP, and as a background job of a shell it ignores SIGINT. Its children would inherit
// that.
//
// The kernel gives a child the default disposition of a signal that has a handler. The handler here does nothing, so
// the process of the tests still ignores the signal. If it does not ignore the signal from the start, nothing changes:
// the signal ends it.
//
// A hangup of the terminal then reaches the children of tests under nohup, too. That does not matter, because nohup is
// for tests without a terminal.
var handleInheritedSignals = sync.OnceFunc(func() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
})

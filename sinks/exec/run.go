package exec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/plugins"
)

const (
	// endTime is how long a command may take to end once it was told to, and how long its output is waited for that
	// somebody else holds open.
	endTime = time.Second
	// lastWait is how long a process may take to be killed. One that waits for a broken disk takes for ever, any other as
	// long as a busy machine lets it.
	lastWait = endTime + 10*time.Second
)

// run is one command.
type run struct {
	program string
	args    []string
	dir     string
	env     []string
	input   []byte
	said    *tail
}

// do returns how the command ended by itself.
func (r *run) do(ctx context.Context) (*os.ProcessState, error) {
	done := make(chan ending, 1)
	go func() {
		// The command dies with the thread that has started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- r.wait(ctx)
	}()
	var end ending
	select {
	case end = <-done:
	case <-ctx.Done():
		select {
		case end = <-done:
		case <-time.After(lastWait):
			return nil, late(ctx, r.program, "cannot be killed")
		}
	}
	return r.judge(ctx, end)
}

// judge tells a command's own answer from what has come of its time being over.
func (r *run) judge(ctx context.Context, end ending) (*os.ProcessState, error) {
	switch {
	case end.state == nil && errors.Is(end.err, ctx.Err()):
		return nil, late(ctx, r.program, "was not started")
	case end.state == nil:
		return nil, fmt.Errorf("start %s: %w", r.program, startError(end.err))
	case end.told && !end.state.Success() && end.state.ExitCode() != dataError:
		return nil, late(ctx, r.program, "was ended")
	}
	return end.state, nil
}

// ending is how a command ended. The state is nil where it did not start.
type ending struct {
	state *os.ProcessState
	err   error
	told  bool // to end, perhaps when it just had
}

// wait starts the command and returns when it has ended and its output was read.
func (r *run) wait(ctx context.Context) ending {
	told := false
	cmd := exec.CommandContext(ctx, r.program, r.args...)
	cmd.Dir, cmd.Env = r.dir, r.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(r.input), r.said, r.said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	plugins.DieWithUs(cmd.SysProcAttr)
	cmd.Cancel = func() error { // it returns before Wait does
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM); errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		told = true
		return nil
	}
	cmd.WaitDelay = endTime
	if err := cmd.Start(); err != nil {
		return ending{err: err}
	}
	err := cmd.Wait()
	// What it has started and left behind goes, too. It is over itself: Wait has killed it where it had to.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	return ending{cmd.ProcessState, err, told}
}

// startError puts into words what a kernel says of a program.
func startError(err error) error {
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("it is no program for this machine; a script begins with a line such as #!/bin/sh: %w", err)
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("what its first line names as its interpreter does not exist: %w", err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("the daemon's user may not run it: %w", err)
	}
	return err
}

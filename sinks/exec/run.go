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

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/plugins/host"
)

const (
	// endTime is the time between SIGTERM and SIGKILL, and the maximum wait for output that another process holds open.
	endTime = time.Second
	// killTimeout is the maximum wait for the end of a killed process. A process that waits for a broken disk never
	// ends.
	killTimeout = endTime + 10*time.Second
)

// command is one run of a command.
type command struct {
	program string
	args    []string
	dir     string
	env     []string
	input   []byte
	output  *outputHead
}

// execute runs the command. It fails if the command did not end by itself, whatever its exit status.
func (c *command) execute(ctx context.Context) (*os.ProcessState, error) {
	done := make(chan exitResult, 1)
	go func() {
		// The command is killed when the thread that started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- c.runToEnd(ctx)
	}()
	end, late := await.Value(ctx, done)
	if late != nil {
		killed, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
		defer cancel()
		if end, late = await.Value(killed, done); late != nil {
			return nil, timeoutError(ctx, c.program, "could not be killed")
		}
	}
	return c.classify(ctx, end)
}

// classify separates a command's own result from the effects of the timeout.
func (c *command) classify(ctx context.Context, end exitResult) (*os.ProcessState, error) {
	switch {
	case end.state == nil && errors.Is(end.err, ctx.Err()):
		return nil, timeoutError(ctx, c.program, "was not started")
	case end.state == nil:
		return nil, fmt.Errorf("start %s: %w", c.program, startError(end.err))
	case end.signalled: // no status counts, because many programs end with 0 at SIGTERM
		return nil, timeoutError(ctx, c.program, "was terminated")
	}
	return end.state, nil
}

// exitResult is the end of a command. The state is nil if it did not start.
type exitResult struct {
	state     *os.ProcessState
	err       error
	signalled bool // SIGTERM was sent, possibly after the end
}

// runToEnd starts the command, and returns when it has ended and its output was read.
func (c *command) runToEnd(ctx context.Context) exitResult {
	told := false
	cmd := exec.CommandContext(ctx, c.program, c.args...)
	cmd.Dir, cmd.Env = c.dir, c.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(c.input), c.output, c.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	host.KillWithParent(cmd.SysProcAttr)
	cmd.Cancel = func() error { // it returns before Wait does
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM); errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		told = true
		return nil
	}
	cmd.WaitDelay = endTime
	if err := cmd.Start(); err != nil {
		return exitResult{err: err}
	}
	err := cmd.Wait()
	// Kill remaining child processes. The command itself has already ended.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	return exitResult{cmd.ProcessState, err, told}
}

// startError describes an error of the kernel about a program.
func startError(err error) error {
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf(
			"it is not a program for this machine, or a script without a first line such as #!/bin/sh: %w", err)
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("the interpreter in its first line does not exist: %w", err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("the user of the relay is not allowed to run it: %w", err)
	}
	return err
}

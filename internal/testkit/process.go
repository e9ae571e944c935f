//go:build unix

package testkit

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	endTimeout   = 20 * time.Second // between SIGTERM and SIGKILL at the end of a test
	drainTimeout = 5 * time.Second  // for pipes that children of a process keep open after its end
)

// Command is a program to start.
type Command struct {
	Path string
	Args []string
	Dir  string   // if empty, the directory of the test
	Env  []string // added to an environment without HUBRELAY_* variables
	// OneOutput captures standard error together with standard output.
	OneOutput bool
	// Group starts a process group, and kills the rest of the group when the process has ended.
	Group bool
}

// Process is a running program. Its methods may be called concurrently.
type Process struct {
	Cmd *exec.Cmd
	In  io.WriteCloser // standard input
	Out *Output        // standard output
	Err *Output        // standard error, which is Out if Command.OneOutput is set

	readers, writers []*os.File
	reading          sync.WaitGroup
	done             chan struct{}
}

// Start starts a program and ends it with the test. The test fails if the program prints a data race or a panic.
func Start(t testing.TB, c Command) *Process {
	t.Helper()
	p, err := start(c)
	if err != nil {
		t.Fatalf("start %s: %v", c.Path, err)
	}
	t.Cleanup(func() {
		p.End()
		for _, bad := range []string{"WARNING: DATA RACE", "panic:", "fatal error:"} {
			if strings.Contains(p.Err.String(), bad) {
				t.Errorf("%s in %v:\n%s", bad, p.Cmd.Args, p.Err)
			}
		}
		if t.Failed() {
			t.Logf("%v printed:\n%s", p.Cmd.Args, p.Err.Tail(tailBytes))
		}
	})
	return p
}

func start(c Command) (*Process, error) {
	p := &Process{Cmd: exec.Command(c.Path, c.Args...), Out: new(Output), done: make(chan struct{})}
	p.Cmd.Dir = c.Dir
	p.Cmd.Env = append(newEnviron(), c.Env...)
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: c.Group}
	err := p.connect(c.OneOutput)
	if err == nil {
		handleInheritedSignals()
		err = p.Cmd.Start()
	}
	for _, w := range p.writers {
		_ = w.Close()
	}
	if err != nil {
		p.drainOutput()
		return nil, err
	}
	go func() {
		_ = p.Cmd.Wait()
		if c.Group {
			_ = syscall.Kill(-p.Cmd.Process.Pid, syscall.SIGKILL)
		}
		p.drainOutput()
		close(p.done)
	}()
	return p, nil
}

// newEnviron returns the environment without HUBRELAY_* variables. It sets GORACE because a program that is built with
// -race sleeps for a second at exit by default.
func newEnviron() []string {
	env := []string{"GORACE=atexit_sleep_ms=0"}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "HUBRELAY_") && !strings.HasPrefix(v, "GORACE=") {
			env = append(env, v)
		}
	}
	return env
}

// connect creates the pipes of a process.
func (p *Process) connect(oneOutput bool) (err error) {
	if p.In, err = p.Cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.openPipe(p.Out)
	if err != nil {
		return err
	}
	p.Cmd.Stdout, p.Cmd.Stderr, p.Err = out, out, p.Out
	if oneOutput {
		return nil
	}
	p.Err = new(Output)
	if out, err = p.openPipe(p.Err); err != nil {
		return err
	}
	p.Cmd.Stderr = out
	return nil
}

// openPipe returns a pipe to an output. Because the pipe is a file, exec.Cmd does not copy the output itself. Wait
// therefore returns as soon as the process has ended, even if its children keep the pipe open.
func (p *Process) openPipe(o *Output) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.readers, p.writers = append(p.readers, r), append(p.writers, w)
	p.reading.Go(func() { _, _ = io.Copy(o, r) })
	return w, nil
}

// drainOutput reads the rest of the output, and closes the pipes.
func (p *Process) drainOutput() {
	for _, r := range p.readers {
		_ = r.SetReadDeadline(time.Now().Add(drainTimeout))
	}
	p.reading.Wait()
	for _, r := range p.readers {
		_ = r.Close()
	}
}

// Signal sends a signal to the process, if it still runs.
func (p *Process) Signal(s os.Signal) { _ = p.Cmd.Process.Signal(s) }

// Kill ends the process as kill -9 does, and waits for its end.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// End sends SIGTERM and waits for the process to end. It kills the process after endTimeout.
func (p *Process) End() {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(endTimeout):
		p.Kill()
	}
}

// Done is closed when the process has ended and Out and Err are complete.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit waits for the end of the process and returns its exit status, which is -1 if a signal ended it.
func (p *Process) Exit(t testing.TB) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(Patience):
		t.Fatalf("%v did not end within %s:\n%s", p.Cmd.Args, Patience, p.Err.Tail(tailBytes))
	}
	return p.Cmd.ProcessState.ExitCode()
}

// Stop sends SIGTERM and fails the test unless the process ends with status 0. It does nothing if the process has ended
// already.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	select {
	case <-p.done:
		return
	default:
	}
	p.Signal(syscall.SIGTERM)
	if code := p.Exit(t); code != 0 {
		t.Errorf("%v ended with %d after SIGTERM:\n%s", p.Cmd.Args, code, p.Err.Tail(tailBytes))
	}
}

// Line waits for a line of Out for which fits returns true, and returns it without its line break. It fails the test if
// the process ends first.
func (p *Process) Line(t testing.TB, what string, fits func(line string) bool) (found string) {
	t.Helper()
	Eventually(t, what, func() error {
		var ended bool
		select {
		case <-p.done:
			ended = true
		default:
		}
		text := p.Out.String()
		for line := range strings.Lines(text) {
			found = strings.TrimRight(line, "\r\n")
			if (ended || strings.HasSuffix(line, "\n")) && fits(found) {
				return nil
			}
		}
		if ended {
			t.Fatalf("%v ended (%v) before it printed %s, but printed:\n%s", p.Cmd.Args, p.Cmd.ProcessState, what, text)
		}
		return fmt.Errorf("%v printed:\n%s", p.Cmd.Args, text)
	})
	return found
}

// Run runs a program until it ends, with stdin as its standard input. It returns its output and its exit status.
func Run(t testing.TB, c Command, stdin string) (out, errOut string, status int) {
	t.Helper()
	p := Start(t, c)
	_, _ = io.WriteString(p.In, stdin)
	_ = p.In.Close()
	status = p.Exit(t)
	return p.Out.String(), p.Err.String(), status
}

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

package main_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// output keeps what a process prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// contains is a probe for testkit.Eventually.
func (o *output) contains(part string) func() error {
	return func() error {
		if text := o.String(); !strings.Contains(text, part) {
			return fmt.Errorf("%q is not in:\n%s", part, text)
		}
		return nil
	}
}

// process is one run of the program.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   output
	err   output
	ended chan struct{}
}

// start runs the program until the test ends. env is added to an environment without variables of ours.
func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	return startIn(t, "", env, args...)
}

// startIn does the same in a folder, where t.Chdir would keep the test from running beside others.
func startIn(t *testing.T, dir string, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	p.cmd.Dir = dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "HUBRELAY_") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	// A program built with -race sleeps for a second at its end unless told otherwise.
	p.cmd.Env = append(append(p.cmd.Env, "GORACE=atexit_sleep_ms=0"), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	p.cmd.WaitDelay = 5 * time.Second
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		for _, bad := range []string{"WARNING: DATA RACE", "panic:", "fatal error:"} {
			if strings.Contains(p.err.String(), bad) {
				t.Errorf("%s in %v:\n%s", bad, args, p.err.String())
			}
		}
		if t.Failed() {
			t.Logf("%v printed:\n%s", args, tail(p.err.String(), 6000))
		}
	})
	return p
}

func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "…" + s[len(s)-n:]
}

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends the process as kill -9 does.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// exit waits for the end and returns the exit code.
func (p *process) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("%v did not end within %s:\n%s", p.cmd.Args, patience, tail(p.err.String(), 6000))
	}
	return p.cmd.ProcessState.ExitCode()
}

// call runs a command to its end and returns what it printed and its exit code.
func call(t *testing.T, env []string, stdin string, args ...string) (out, errOut string, code int) {
	t.Helper()
	return callIn(t, "", env, stdin, args...)
}

// callIn does the same in a folder.
func callIn(t *testing.T, dir string, env []string, stdin string, args ...string) (out, errOut string, code int) {
	t.Helper()
	p := startIn(t, dir, env, args...)
	_, _ = io.WriteString(p.in, stdin)
	_ = p.in.Close()
	code = p.exit(t)
	return p.out.String(), p.err.String(), code
}

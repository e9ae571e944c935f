package examples

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a program that runs beside a test; what it prints is kept line by line, both streams together.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and everything it printed is kept
	err  error         // of Wait, once done is closed

	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed and replaced with each line
}

// start runs a program with env added to the environment until the test ends. Its standard input stays open.
func start(t *testing.T, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{}), more: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = writer, writer
	err = p.cmd.Start()
	_ = writer.Close()
	if err != nil {
		_ = reader.Close()
		t.Fatalf("start %s (make test installs what the examples need): %v", name, err)
	}
	var read sync.WaitGroup
	read.Go(func() { p.read(reader) })
	go func() {
		p.err = p.cmd.Wait()
		// What a child of the process holds of the pipe ends with it; one in a group of its own is not waited for.
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		_ = reader.SetReadDeadline(time.Now().Add(10 * time.Second))
		read.Wait()
		_ = reader.Close()
		close(p.done)
	}()
	t.Cleanup(func() { _ = p.stop() })
	return p
}

func (p *process) read(r io.Reader) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		p.mu.Lock()
		p.lines = append(p.lines, scanner.Text())
		close(p.more)
		p.more = make(chan struct{})
		p.mu.Unlock()
	}
}

// line waits for a line that fits and returns it.
func (p *process) line(t *testing.T, what string, fits func(string) bool) string {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for next := 0; ; {
		p.mu.Lock()
		lines, more := p.lines[next:], p.more
		p.mu.Unlock()
		for _, l := range lines {
			if fits(l) {
				return l
			}
		}
		next += len(lines)
		select {
		case <-more:
			continue
		case <-p.done:
			t.Fatalf("%s ended (%v) before %s came; it printed:\n%s", p.cmd.Path, p.err, what, p.output())
		case <-timeout.C:
			t.Fatalf("%s did not print %s within %s, but:\n%s", p.cmd.Path, what, patience, p.output())
		}
	}
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop asks the process to end, kills it when it does not, and returns how it ended. It may be called twice.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.done
		return errors.New("it did not end and was killed")
	}
	return p.err
}

// run runs a program to its end and returns what it printed; a failure fails the test.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	p := start(t, env, name, args...)
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatalf("%s did not end within %s", name, patience)
	}
	if p.err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), p.err, p.output())
	}
	return p.output()
}

package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/internal/procpipe"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	// maxHandshake is the maximum length of the first line of standard output in bytes.
	maxHandshake = 8 << 10
	// outputGrace is the time to read the output of a process that has ended, while children hold it open.
	outputGrace = 100 * time.Millisecond
)

// pluginProcess is one run of a plugin's program. It implements go-plugin's runner. The process has its own group,
// which is killed as a whole, and a standard input that ends with the daemon. Processes that the plugin starts in
// another session or group continue without the plugin's output.
type pluginProcess struct {
	cmd         *exec.Cmd
	memoryLimit int64
	folder      string // directory of its socket
	output      *pluginOutput

	stdin          *os.File // our end; closing it requests the end of the plugin
	stdout, stderr *os.File
	handshake      *io.PipeReader // the first line of the standard output
	exited         chan struct{}  // closed when the process has ended and its output was read
	killed         atomic.Bool    // possibly before the start
	pid            atomic.Int64   // zero until it was started

	mu            sync.Mutex
	firstLine     string
	firstLineDone bool // firstLine is complete
	stdoutClosed  bool // without a line
	rejectErr     error
	exitText      string
	killedByUs    bool // the host has killed it
}

// Start starts the process. It is called once.
func (p *pluginProcess) Start(context.Context) error {
	var theirs []*os.File
	pipe := func(ours **os.File, reads bool) (*os.File, error) {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		if reads {
			r, w = w, r
		}
		*ours = w
		theirs = append(theirs, r)
		return r, nil
	}
	in, err := pipe(&p.stdin, false)
	out, err2 := pipe(&p.stdout, true)
	failed, err3 := pipe(&p.stderr, true)
	if err = errors.Join(err, err2, err3); err == nil {
		p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = in, out, failed
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		KillWithParent(p.cmd.SysProcAttr)
		err = p.launchProcess()
	}
	for _, f := range theirs {
		_ = f.Close()
	}
	if err != nil {
		p.closePipes()
		return fmt.Errorf("start the plugin: %w", err)
	}
	return nil
}

func (p *pluginProcess) launchProcess() error {
	started := make(chan error, 1)
	exited := make(chan *os.ProcessState, 1)
	go func() {
		// The death signal of KillWithParent is sent when the starting thread ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			state, _ := p.cmd.Process.Wait()
			exited <- state
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	p.pid.Store(int64(p.cmd.Process.Pid))
	if p.killed.Load() {
		p.killGroup()
	}
	if err := limitMemory(p.cmd.Process.Pid, p.memoryLimit); err != nil {
		p.output.log.Warn("memory of the plugin is not limited", "error", err)
	}
	reader, writer := io.Pipe()
	p.handshake = reader
	var followers sync.WaitGroup
	followers.Go(func() { p.followStdout(writer) })
	followers.Go(func() { p.output.copyLines(procpipe.NewReader(p.stderr), "stderr") })
	go func() {
		defer close(p.exited)
		state := <-exited
		p.killGroup() // kills remaining child processes
		last := time.Now().Add(outputGrace)
		_ = p.stdout.SetReadDeadline(last)
		_ = p.stderr.SetReadDeadline(last)
		followers.Wait()
		p.closePipes()
		p.mu.Lock()
		p.exitText, p.killedByUs = describeExit(state)
		p.killedByUs = p.killedByUs && p.killed.Load()
		p.mu.Unlock()
	}()
	return nil
}

func describeExit(state *os.ProcessState) (text string, killed bool) {
	if state == nil {
		return "for an unknown reason", false
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return fmt.Sprintf("by signal %d (%s)", int(status.Signal()), status.Signal()),
			status.Signal() == syscall.SIGKILL
	}
	return "with status " + strconv.Itoa(state.ExitCode()), false
}

// followStdout passes the first line to go-plugin. Everything after it is normal output.
func (p *pluginProcess) followStdout(handshake *io.PipeWriter) {
	defer func() { _ = handshake.Close() }()
	r := bufio.NewReaderSize(procpipe.NewReader(p.stdout), maxHandshake)
	line, err := r.ReadSlice('\n')
	text := strings.TrimSpace(string(line))
	p.mu.Lock()
	p.firstLine, p.firstLineDone = text, err == nil || errors.Is(err, bufio.ErrBufferFull)
	p.stdoutClosed = err != nil && text == ""
	p.mu.Unlock()
	if _, err := io.WriteString(handshake, text+"\n"); err == nil || text != "" {
		p.output.copyLines(r, "stdout")
	}
}

// hasClosedStdout reports whether the standard output was closed without a line.
func (p *pluginProcess) hasClosedStdout() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stdoutClosed
}

// handshakeLine returns the first line of the standard output, and whether there was one.
func (p *pluginProcess) handshakeLine() (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.firstLine, p.firstLineDone
}

// exitInfo returns how the process ended, or an empty string while it runs, and whether the host ended it.
func (p *pluginProcess) exitInfo() (how string, byUs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exitText, p.killedByUs
}

// rejectError returns why the host did not connect to the address of the plugin, or nil.
func (p *pluginProcess) rejectError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rejectErr
}

func (p *pluginProcess) closePipes() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (p *pluginProcess) killGroup() { _ = syscall.Kill(-int(p.pid.Load()), syscall.SIGKILL) }

// Kill kills the process and its children.
func (p *pluginProcess) Kill(context.Context) error {
	p.killed.Store(true)
	if p.pid.Load() > 0 {
		select {
		case <-p.exited:
		default:
			p.killGroup()
		}
	}
	return nil
}

// Wait returns when the process has ended.
func (p *pluginProcess) Wait(context.Context) error {
	<-p.exited
	return nil
}

// Stdout returns the handshake.
func (p *pluginProcess) Stdout() io.ReadCloser { return p.handshake }

// Stderr returns an empty reader, because the host reads it itself.
func (p *pluginProcess) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name returns the path of the program.
func (p *pluginProcess) Name() string { return p.cmd.Path }

// ID returns the process ID.
func (p *pluginProcess) ID() string { return strconv.FormatInt(p.pid.Load(), 10) }

// Diagnose returns nothing, because the errors of the host are more precise.
func (p *pluginProcess) Diagnose(context.Context) string { return "" }

// HostToPlugin returns an address unchanged.
func (p *pluginProcess) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}

// PluginToHost accepts only a socket in the directory of the plugin, because the host connects to it.
func (p *pluginProcess) PluginToHost(network, address string) (string, string, error) {
	inside := strings.HasPrefix(filepath.Clean(address), p.folder+string(filepath.Separator))
	if network != "unix" || !inside {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.rejectErr = fmt.Errorf("the plugin listens on %s %s: it must create a unix socket in the directory that "+
			"PLUGIN_UNIX_SOCKET_DIR names",
			relay.Truncate(network, 20), relay.Truncate(address, 100))
		return "", "", p.rejectErr
	}
	return network, address, nil
}

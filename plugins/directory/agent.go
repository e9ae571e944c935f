package directory

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

const (
	// stopGrace is the time between SIGTERM and SIGKILL.
	stopGrace = 10 * time.Second
	// stopPollInterval is the interval at which an agent checks whether it must end.
	stopPollInterval = 200 * time.Millisecond
	// minRestartPause and maxRestartPause limit the pause before a command is restarted.
	minRestartPause = 200 * time.Millisecond
	maxRestartPause = 30 * time.Second
)

// agentState is the state of an agent, in a file next to its lock.
type agentState struct {
	Lease int64 `json:"lease"`
	PID   int   `json:"pid,omitempty"`
	// Stable is set after the command has run for the stable time in this directory. It is never cleared.
	Stable bool `json:"steady"`
	// Failure is the reason why the command did not start, or empty.
	Failure string `json:"failure,omitempty"`
}

func readState(home string) (agentState, error) {
	var s agentState
	data, err := readSmall(filepath.Join(home, fileAgentState))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}

// agent runs the command of one instance. Its working directory is the instance's directory, even after a rename.
type agent struct {
	instanceDir
	stableAfter time.Duration
	// grace is the time between SIGTERM and SIGKILL.
	grace  time.Duration
	lock   *os.File
	state  agentState
	output *agentOutput
}

// RunAgent is the main function of an agent, a process that keeps the command of one instance running. The arguments
// are those that the driver appends to Options.AgentCommand: the server's path, the instance, the lease, the time that
// a command must run to count as started, and the relay's ID. RunAgent returns when a migration stops the instance or
// ctx ends. It returns immediately if another agent has the lock of the directory or the lease is outdated. It changes
// the working directory of the process.
func RunAgent(ctx context.Context, args []string) error {
	return runAgentWithGrace(ctx, args, stopGrace)
}

func runAgentWithGrace(ctx context.Context, args []string, grace time.Duration) error {
	if len(args) != agentArgs {
		return errors.New(
			"an agent requires the arguments PATH INSTANCE LEASE STEADY RELAY; only the migration driver starts agents",
		)
	}
	lease, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil || lease < 0 {
		return fmt.Errorf("lease %q is not a number", args[2])
	}
	if err := checkElement("instance", args[1]); err != nil {
		return err
	}
	stableAfter, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	a := &agent{
		instanceDir: instanceDir{path: args[0], instance: args[1], lease: lease}, stableAfter: stableAfter,
		grace: grace,
	}
	if err := os.Chdir(a.instancePath()); err != nil {
		return err
	}
	var taken bool
	if a.lock, taken, err = takeLock(fileLock); err != nil || !taken {
		return err
	}
	defer func() { _ = a.lock.Close() }()
	// This process has the lock. A process that moves the directory from now on stops this agent first, and earlier
	// claims are visible.
	if n, err := a.currentLease(); err != nil || n != lease || a.shouldStop() {
		return cmp.Or(err, fmt.Errorf("instance %s is being migrated, or lease %d is outdated", a.instance, lease))
	}
	if a.output, err = openOutput(fileOutput, maxOutput); err != nil {
		return err
	}
	defer func() { _ = a.output.Close() }()
	return a.supervise(ctx)
}

// keepLock takes the lock again if something has removed or replaced its file, because another agent could start otherwise. It returns
// false if another agent has the lock now.
func (a *agent) keepLock() bool {
	former, err := a.lock.Stat()
	if err != nil {
		return true
	}
	if current, err := os.Lstat(fileLock); err == nil && os.SameFile(former, current) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return true
	}
	lock, taken, err := takeLock(fileLock)
	if err != nil || !taken {
		return err != nil
	}
	_ = a.lock.Close()
	a.lock = lock
	return true
}

// shouldStop reports whether the current lease requests a stop of the command, the directory was moved, or another agent runs in it.
func (a *agent) shouldStop() bool {
	here, err := os.Stat(".")
	if err != nil {
		return true
	}
	home, err := os.Lstat(a.instancePath())
	if err != nil || !os.SameFile(here, home) {
		return !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ESTALE)
	}
	if !a.keepLock() {
		return true
	}
	n, err := a.currentLease()
	if err != nil || n == 0 {
		return false
	}
	now := a.instanceDir
	now.lease = n
	for _, name := range []string{fileStop, dirInstance} {
		if there, _ := exists(now.workFile(name)); there {
			return true
		}
	}
	return false
}

// supervise runs the command and restarts it when it ends, until the agent must stop.
func (a *agent) supervise(ctx context.Context) error {
	// On Linux, the kernel kills the command when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	former, _ := readState(".")
	a.state = agentState{Lease: a.lease, Stable: former.Stable}
	pause := minRestartPause
	for {
		a.publishState()
		began := time.Now()
		mustEnd, how := a.runCommand(ctx)
		if mustEnd {
			return nil
		}
		if time.Since(began) > time.Minute {
			pause = minRestartPause
		}
		a.output.writeNote("the command %s; restarting it", how)
		if !a.state.Stable {
			a.state.Failure = how
		}
		wait := time.NewTimer(pause/2 + rand.N(pause))
		if a.waitOrStop(ctx, wait.C) {
			return nil
		}
		pause = min(2*pause, maxRestartPause)
	}
}

// waitOrStop waits for a value from c. It returns true if the agent must end before that.
func (a *agent) waitOrStop(ctx context.Context, c <-chan time.Time) bool {
	look := time.NewTicker(stopPollInterval)
	defer look.Stop()
	for {
		select {
		case <-c:
			return false
		case <-ctx.Done():
			return true
		case <-look.C:
			if a.shouldStop() {
				return true
			}
		}
	}
}

// runCommand runs the command until it ends or the agent must end. In the first case it returns how the command ended.
func (a *agent) runCommand(ctx context.Context) (mustEnd bool, how string) {
	cmd, err := a.start()
	if err != nil {
		return false, "did not start: " + err.Error()
	}
	a.state.PID = cmd.Process.Pid
	a.publishState()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // ProcessState contains the result
	}()
	stable := time.NewTimer(a.stableAfter)
	defer stable.Stop()
	look := time.NewTicker(stopPollInterval)
	defer look.Stop()
	for {
		select {
		case <-done:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			return false, "ended with " + cmd.ProcessState.String()
		case <-stable.C:
			// If this process was delayed, the command may have ended although done is not closed yet.
			if !hasExited(cmd.Process.Pid, done) {
				a.state.Stable, a.state.Failure = true, ""
				a.publishState()
			}
		case <-ctx.Done():
			a.stopCommand(cmd, done)
			return true, ""
		case <-look.C:
			if a.shouldStop() {
				a.stopCommand(cmd, done)
				return true, ""
			}
		}
	}
}

func (a *agent) start() (*exec.Cmd, error) {
	if err := checkOwnerAt(a.path); err != nil {
		return nil, err
	}
	c, err := readInstance(".")
	if err != nil {
		return nil, err
	}
	if len(c.Command) == 0 {
		return nil, fmt.Errorf("%s contains no command", fileInstance)
	}
	cmd := exec.Command(c.Command[0], c.Command[1:]...)
	// A relative path such as ./program is relative to the directory of instance.json.
	if cmd.Dir, err = os.Getwd(); err != nil {
		return nil, err
	}
	cmd.Env = c.commandEnv(a.instance)
	cmd.Stdout, cmd.Stderr = a.output.pipe, a.output.pipe
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	killWithAgent(cmd.SysProcAttr)
	return cmd, cmd.Start()
}

// stopCommand stops all processes in the process group of the command.
func (a *agent) stopCommand(cmd *exec.Cmd, done <-chan struct{}) {
	group := -cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM)
	grace := time.NewTimer(a.grace)
	defer grace.Stop()
	look := time.NewTicker(stopPollInterval / 4)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			select {
			case <-done:
				if !groupAlive(cmd.Process.Pid) {
					_ = syscall.Kill(group, syscall.SIGKILL) // processes forked during the check
					return
				} // otherwise children of the command are still running
			default:
			}
		case <-grace.C:
			_ = syscall.Kill(group, syscall.SIGKILL)
			<-done
			return
		}
	}
}

// publishState writes the state file. It only logs an error, so the command runs even if the disk is full.
func (a *agent) publishState() {
	if err := a.writeState(); err != nil {
		a.output.writeNote("write the state file: %v", err)
	}
}

func (a *agent) writeState() error {
	data, err := json.Marshal(a.state)
	if err != nil {
		return err
	}
	return replaceFile(fileAgentState, data)
}

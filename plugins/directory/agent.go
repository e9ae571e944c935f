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
	// Stable is set once the command has run for a while in this folder, and stays.
	Stable bool `json:"steady"`
	// Failure is why the command did not start. It is empty while that is unknown.
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

// agent runs the command of one instance. Its working directory is the instance's folder, wherever that is moved.
type agent struct {
	instanceDir
	steady time.Duration
	// grace is the time between SIGTERM and SIGKILL.
	grace  time.Duration
	state  agentState
	output *agentOutput
}

// RunAgent is the main function of an agent, a process that keeps the command of one instance running. The arguments
// are those that the driver appends to Options.AgentCommand: the server's path, the instance, the lease, the time that
// a command must run to count as started, and the relay's ID. It returns when it is told to end or ctx ends, and at
// once if another agent works in the directory or the lease is outdated. It changes the working directory of the
// process.
func RunAgent(ctx context.Context, args []string) error { return keep(ctx, args, stopGrace) }

func keep(ctx context.Context, args []string, grace time.Duration) error {
	if len(args) != agentArgs {
		return errors.New(
			"only the driver of migrations starts agents; their arguments are PATH INSTANCE LEASE STEADY RELAY",
		)
	}
	lease, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil || lease < 0 {
		return fmt.Errorf("lease %q is not a number", args[2])
	}
	if err := checkElement("instance", args[1]); err != nil {
		return err
	}
	steady, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	k := &agent{instanceDir: instanceDir{path: args[0], instance: args[1], lease: lease}, steady: steady, grace: grace}
	if err := os.Chdir(k.instancePath()); err != nil {
		return err
	}
	lock, taken, err := takeLock(fileLock)
	if err != nil || !taken {
		return err
	}
	defer func() { _ = lock.Close() }()
	// The lock is held. A process that moves the directory from now on stops this agent first, and earlier claims are
	// visible.
	if n, err := k.currentLease(); err != nil || n != lease || k.shouldStop() {
		return cmp.Or(err, fmt.Errorf("the instance %s is being migrated, or was", k.instance))
	}
	if k.output, err = openOutput(fileOutput, maxOutput); err != nil {
		return err
	}
	defer func() { _ = k.output.Close() }()
	return k.supervise(ctx)
}

// shouldStop reports whether the current lease wants the command stopped, or the directory has moved.
func (k *agent) shouldStop() bool {
	here, err := os.Stat(".")
	if err != nil {
		return true
	}
	home, err := os.Lstat(k.instancePath())
	if err != nil || !os.SameFile(here, home) {
		return !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ESTALE)
	}
	n, err := k.currentLease()
	if err != nil || n == 0 {
		return false
	}
	now := k.instanceDir
	now.lease = n
	for _, name := range []string{fileStop, dirInstance} {
		if there, _ := exists(now.workFile(name)); there {
			return true
		}
	}
	return false
}

// supervise starts the command again and again.
func (k *agent) supervise(ctx context.Context) error {
	// The command dies with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	former, _ := readState(".")
	k.state = agentState{Lease: k.lease, Stable: former.Stable}
	pause := minRestartPause
	for {
		k.publishState()
		began := time.Now()
		mustEnd, how := k.runCommand(ctx)
		if mustEnd {
			return nil
		}
		if time.Since(began) > time.Minute {
			pause = minRestartPause
		}
		k.output.writeNote("the command %s; it is started again", how)
		if !k.state.Stable {
			k.state.Failure = how
		}
		wait := time.NewTimer(pause/2 + rand.N(pause))
		if k.waitOrStop(ctx, wait.C) {
			return nil
		}
		pause = min(2*pause, maxRestartPause)
	}
}

// waitOrStop waits for a value from c. It returns true if the agent must end instead.
func (k *agent) waitOrStop(ctx context.Context, c <-chan time.Time) bool {
	look := time.NewTicker(stopPollInterval)
	defer look.Stop()
	for {
		select {
		case <-c:
			return false
		case <-ctx.Done():
			return true
		case <-look.C:
			if k.shouldStop() {
				return true
			}
		}
	}
}

// runCommand runs the command until it ends, and returns how it ended, or until the agent must end.
func (k *agent) runCommand(ctx context.Context) (mustEnd bool, how string) {
	cmd, err := k.start()
	if err != nil {
		return false, "could not be started: " + err.Error()
	}
	k.state.PID = cmd.Process.Pid
	k.publishState()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended shows in its state
	}()
	steady := time.NewTimer(k.steady)
	defer steady.Stop()
	look := time.NewTicker(stopPollInterval)
	defer look.Stop()
	for {
		select {
		case <-done:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			return false, "ended with " + cmd.ProcessState.String()
		case <-steady.C:
			// After a delay the command may have ended long ago, before done reports it.
			if !hasExited(cmd.Process.Pid, done) {
				k.state.Stable, k.state.Failure = true, ""
				k.publishState()
			}
		case <-ctx.Done():
			k.stopCommand(cmd, done)
			return true, ""
		case <-look.C:
			if k.shouldStop() {
				k.stopCommand(cmd, done)
				return true, ""
			}
		}
	}
}

func (k *agent) start() (*exec.Cmd, error) {
	if err := checkOwnerAt(k.path); err != nil {
		return nil, err
	}
	c, err := readInstance(".")
	if err != nil {
		return nil, err
	}
	if len(c.Command) == 0 {
		return nil, fmt.Errorf("there is no command in %s", fileInstance)
	}
	cmd := exec.Command(c.Command[0], c.Command[1:]...)
	// A name such as ./program means a program next to instance.json.
	if cmd.Dir, err = os.Getwd(); err != nil {
		return nil, err
	}
	cmd.Env = c.commandEnv(k.instance)
	cmd.Stdout, cmd.Stderr = k.output.pipe, k.output.pipe
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	killWithAgent(cmd.SysProcAttr)
	return cmd, cmd.Start()
}

// stopCommand stops the command and all of its process group.
func (k *agent) stopCommand(cmd *exec.Cmd, done <-chan struct{}) {
	group := -cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM)
	grace := time.NewTimer(k.grace)
	defer grace.Stop()
	look := time.NewTicker(stopPollInterval / 4)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			select {
			case <-done:
				if !groupAlive(cmd.Process.Pid) {
					_ = syscall.Kill(group, syscall.SIGKILL) // what was born while we looked
					return
				} // else children of the command are still at work
			default:
			}
		case <-grace.C:
			_ = syscall.Kill(group, syscall.SIGKILL)
			<-done
			return
		}
	}
}

// publishState writes the state file. If the disk is full, the command runs anyway.
func (k *agent) publishState() {
	if err := k.writeState(); err != nil {
		k.output.writeNote("its state cannot be written: %v", err)
	}
}

func (k *agent) writeState() error {
	data, err := json.Marshal(k.state)
	if err != nil {
		return err
	}
	return replaceFile(fileAgentState, data)
}

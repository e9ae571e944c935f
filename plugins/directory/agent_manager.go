package directory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// agentPollInterval is the interval at which the driver checks the progress of an agent.
	agentPollInterval = 25 * time.Millisecond
	// agentStopTimeout bounds how long an agent may take to stop its command: the grace, and a busy machine.
	agentStopTimeout = stopGrace + 20*time.Second
	// agentStartTimeout bounds how long an agent may take to start a command, on a busy machine.
	agentStartTimeout = 20 * time.Second
)

// agentManager starts and stops agents. They run in their own sessions and are found by their locks.
type agentManager struct {
	command []string
	// relay is the ID of the relay that the agents belong to.
	relay string
	// steady is the time that a command must run to count as started.
	steady time.Duration

	mu   sync.Mutex
	pids map[int]struct{}
}

// startAgent starts an agent and does not wait for it.
func (ks *agentManager) startAgent(p instanceDir) (int, error) {
	if len(ks.command) == 0 {
		return 0, errors.New("this driver has no program to keep commands running")
	}
	args := append(ks.command[1:len(ks.command):len(ks.command)], p.path, p.instance, strconv.FormatInt(p.lease, 10),
		ks.steady.String(), ks.relay)
	cmd := exec.Command(ks.command[0], args...)
	cmd.Env = inheritedEnv()
	cmd.Dir = "/"
	closeOnExec()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	pid := cmd.Process.Pid
	ks.pids[pid] = struct{}{}
	return pid, cmd.Process.Release()
}

// isAlive reports whether an agent of this driver is running. It also collects ended ones.
func (ks *agentManager) isAlive(pid int) bool {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	for pid := range ks.pids {
		var status syscall.WaitStatus
		if n, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); n == pid || errors.Is(err, syscall.ECHILD) {
			delete(ks.pids, pid)
		}
	}
	_, ok := ks.pids[pid]
	return ok
}

// pollUntil asks until there is an answer, an error, or no time left.
func pollUntil(ctx context.Context, within time.Duration, ask func() (bool, error)) (bool, error) {
	late := time.NewTimer(within)
	defer late.Stop()
	tick := time.NewTicker(agentPollInterval)
	defer tick.Stop()
	for {
		if ok, err := ask(); ok || err != nil {
			return ok, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-late.C:
			return ask() // what has happened while we were held up counts
		case <-tick.C:
		}
	}
}

// stopAgent ends the agent of a place, wherever it runs. None starts there until the mark is removed.
func (ks *agentManager) stopAgent(ctx context.Context, p instanceDir) error {
	if err := p.createMarker(fileStop); err != nil {
		return err
	}
	stopped, err := pollUntil(ctx, agentStopTimeout, func() (bool, error) {
		running, err := AgentRunning(p.instancePath())
		return !running, err
	})
	ks.isAlive(0)
	if err == nil && !stopped {
		err = fmt.Errorf("the agent of instance %s on server %s does not stop; find the process that holds %s/%s",
			p.instance, p.server, p.instancePath(), fileLock)
	}
	return p.supersededOr(err)
}

// ensureStarted makes sure that an agent works in a directory whose instance has a command. If steady is set, it waits
// until the command has run for some time.
func (ks *agentManager) ensureStarted(ctx context.Context, p instanceDir, steady bool) error {
	c, err := readInstance(p.instancePath())
	if err != nil || len(c.Command) == 0 {
		return p.supersededError(err)
	}
	running, err := AgentRunning(p.instancePath())
	if err != nil {
		return err
	}
	pid := 0
	if !running {
		if pid, err = ks.startAgent(p); err != nil {
			return fmt.Errorf("start the agent: %w", err)
		}
	}
	started, err := pollUntil(ctx, ks.steady+agentStartTimeout, func() (bool, error) {
		// Check this first: everything that the agent did before its end is then visible to the other checks.
		alive := pid == 0 || ks.isAlive(pid)
		running, err := AgentRunning(p.instancePath())
		if err != nil || running && !steady {
			return running, err
		}
		state, err := readState(p.instancePath())
		switch {
		case err != nil:
			return false, err
		case !running && alive:
			return false, nil // it has not come so far
		case !running:
			return false, errors.New("its agent ended at once")
		case state.Failure != "" && (pid == 0 || state.Lease == p.lease):
			return false, fmt.Errorf("its command %s", state.Failure)
		}
		return state.Stable && (pid == 0 || state.Lease == p.lease), nil
	})
	if err == nil && !started {
		err = fmt.Errorf("its command was not running within %v", ks.steady+agentStartTimeout)
	}
	return p.supersededOr(err)
}

// supersededOr returns ErrSuperseded if a higher lease has the place, and err otherwise.
func (p instanceDir) supersededOr(err error) error {
	if e := p.checkLease(); e != nil && p.lease > 0 {
		return e
	}
	return err
}

// resumeInstance starts the agent of an instance at its place, unless a migration is working on it.
func (ks *agentManager) resumeInstance(p instanceDir) error {
	c, err := readInstance(p.instancePath())
	if err != nil || len(c.Command) == 0 {
		return err
	}
	if p.lease, err = p.currentLease(); err != nil {
		return err
	}
	for _, name := range []string{fileStop, dirInstance} {
		if held, err := exists(p.workFile(name)); held || err != nil {
			return err
		}
	}
	if running, err := AgentRunning(p.instancePath()); running || err != nil {
		return err
	}
	_, err = ks.startAgent(p)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w; is the program still there?", err)
	}
	return err
}

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
	// agentStopTimeout is the maximum time an agent needs to stop its command: the grace period, plus a margin for a
	// busy machine.
	agentStopTimeout = stopGrace + 20*time.Second
	// agentStartTimeout is the maximum time an agent needs to start a command on a busy machine.
	agentStartTimeout = 20 * time.Second
)

// agentManager starts and stops agents. Each agent runs in its own session and is found by its lock.
type agentManager struct {
	command []string
	// relay is the ID of the relay that the agents belong to.
	relay string
	// stableAfter is the time that a command must run to count as started.
	stableAfter time.Duration

	mu   sync.Mutex
	pids map[int]struct{}
}

// startAgent starts an agent and does not wait for it.
func (m *agentManager) startAgent(p instanceDir) (int, error) {
	if len(m.command) == 0 {
		return 0, errors.New("the driver has no agent command, so it can only move instances without a command")
	}
	args := append(m.command[1:len(m.command):len(m.command)], p.path, p.instance, strconv.FormatInt(p.lease, 10),
		m.stableAfter.String(), m.relay)
	cmd := exec.Command(m.command[0], args...)
	cmd.Env = inheritedEnv()
	cmd.Dir = "/"
	closeOnExec()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	pid := cmd.Process.Pid
	m.pids[pid] = struct{}{}
	return pid, cmd.Process.Release()
}

// isAlive reports whether an agent of this driver is running. It also reaps agents that have ended.
func (m *agentManager) isAlive(pid int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for pid := range m.pids {
		var status syscall.WaitStatus
		if n, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); n == pid || errors.Is(err, syscall.ECHILD) {
			delete(m.pids, pid)
		}
	}
	_, ok := m.pids[pid]
	return ok
}

// pollUntil calls ask until it returns true or an error, or the time is up. It calls ask a last time at the deadline.
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
			return ask() // this process may have been delayed since the last call
		case <-tick.C:
		}
	}
}

// stopAgent stops the agent of an instance directory, on any machine. No agent starts there until the marker is
// removed.
func (m *agentManager) stopAgent(ctx context.Context, p instanceDir) error {
	if err := p.createMarker(fileStop); err != nil {
		return err
	}
	stopped, err := pollUntil(ctx, agentStopTimeout, func() (bool, error) {
		running, err := AgentRunning(p.instancePath())
		return !running, err
	})
	m.isAlive(0)
	if err == nil && !stopped {
		err = fmt.Errorf("the agent of instance %s on server %s did not stop; stop the process that has locked %s/%s",
			p.instance, p.server, p.instancePath(), fileLock)
	}
	return p.supersededOr(err)
}

// ensureStarted makes sure that an agent is running if the instance has a command. If stable is set, it waits until the
// command has run for the stable time.
func (m *agentManager) ensureStarted(ctx context.Context, p instanceDir, stable bool) error {
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
		if pid, err = m.startAgent(p); err != nil {
			return fmt.Errorf("start the agent: %w", err)
		}
	}
	started, err := pollUntil(ctx, m.stableAfter+agentStartTimeout, func() (bool, error) {
		// Check this first, so the other checks see everything that the agent did before it ended.
		alive := pid == 0 || m.isAlive(pid)
		running, err := AgentRunning(p.instancePath())
		if err != nil || running && !stable {
			return running, err
		}
		state, err := readState(p.instancePath())
		switch {
		case err != nil:
			return false, err
		case !running && alive:
			return false, nil // it has not taken the lock yet
		case !running:
			return false, errors.New("its agent exited immediately")
		case state.Failure != "" && (pid == 0 || state.Lease == p.lease):
			return false, fmt.Errorf("its command %s", state.Failure)
		}
		return state.Stable && (pid == 0 || state.Lease == p.lease), nil
	})
	if err == nil && !started {
		err = fmt.Errorf("its command was not running after %v", m.stableAfter+agentStartTimeout)
	}
	return p.supersededOr(err)
}

// supersededOr returns ErrSuperseded if a higher lease has claimed the instance, and err otherwise.
func (i instanceDir) supersededOr(err error) error {
	if e := i.checkLease(); e != nil && i.lease > 0 {
		return e
	}
	return err
}

// resumeInstance starts the agent of an instance, unless a migration of the instance is in progress.
func (m *agentManager) resumeInstance(p instanceDir) error {
	c, err := readInstance(p.instancePath())
	if err != nil {
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
	info, err := os.Lstat(p.instancePath())
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("the instance is not on this server; correct the inventory, or move the directory of the instance here")
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", p.instancePath())
	case len(c.Command) == 0:
		return nil
	}
	if running, err := AgentRunning(p.instancePath()); running || err != nil {
		return err
	}
	_, err = m.startAgent(p)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w; check that the agent program still exists", err)
	}
	return err
}

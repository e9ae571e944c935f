package directory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// AgentCommand is the argument before the arguments of [RunAgent]. It identifies agents among all processes.
const AgentCommand = "agent"

// anyRelay is used for a relay without an ID.
const anyRelay = "none"

// agentArgs is the number of arguments of RunAgent.
const agentArgs = 5

// Agent is a process on this machine that keeps the command of an instance running.
type Agent struct {
	PID int
	// Path is the directory of the server.
	Path     string
	Instance string
	// Relay is the ID of the relay that started the agent.
	Relay   string
	Started time.Time

	uid int
}

// Agents lists the agent processes of this user on this machine, or of all users for root, ordered by instance. It
// omits agents in other containers.
func Agents() ([]Agent, error) {
	list, err := listAgents()
	if err != nil {
		return nil, fmt.Errorf("list agent processes: %w", err)
	}
	if os.Geteuid() != 0 { // another user could start a process with the arguments of an agent
		list = slices.DeleteFunc(list, func(a Agent) bool { return a.uid != os.Geteuid() })
	}
	slices.SortFunc(list, func(a, b Agent) int {
		return cmp.Or(strings.Compare(a.Instance, b.Instance), strings.Compare(a.Path, b.Path))
	})
	return list, nil
}

// parseAgent reads an agent from the arguments of a process.
func parseAgent(args []string) (Agent, bool) {
	at := len(args) - agentArgs - 1
	if at < 1 || args[at] != AgentCommand {
		return Agent{}, false
	}
	return Agent{Path: args[at+1], Instance: args[at+2], Relay: args[at+5]}, true
}

// Stop stops the agent and its command, and waits until the agent has ended. The agent kills the command after 10 s.
func (a Agent) Stop(ctx context.Context) error {
	if err := a.sendTerm(); err != nil {
		return err
	}
	ended, err := pollUntil(ctx, agentStopTimeout, func() (bool, error) { return !a.isRunning(), nil })
	if err == nil && !ended {
		err = errors.New("it did not end in time")
	}
	if err != nil {
		return fmt.Errorf("stop agent %d of instance %s: %w", a.PID, a.Instance, err)
	}
	return nil
}

// sendTerm sends SIGTERM. It looks up the process before it checks the arguments, so the PID cannot be reused in
// between.
func (a Agent) sendTerm() error {
	process, err := os.FindProcess(a.PID)
	if err != nil {
		return nil //nolint:nilerr // it has ended
	}
	defer func() { _ = process.Release() }()
	if !a.isRunning() {
		return nil
	}
	if err := process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop agent %d of instance %s: %w", a.PID, a.Instance, err)
	}
	return nil
}

// isRunning reports whether the process with this PID is still this agent.
func (a Agent) isRunning() bool {
	now, ok := agentAt(a.PID)
	return ok && now.Path == a.Path && now.Instance == a.Instance && now.Relay == a.Relay
}

// isWanted reports whether the agent runs in home, the instance's directory according to the inventory. home is empty
// for an unknown instance. During a migration home does not exist, and the agent on the destination is wanted too.
func (a Agent) isWanted(home string) bool {
	if home == "" {
		return false
	}
	if home == filepath.Join(a.Path, a.Instance) {
		return true
	}
	there, err := exists(home)
	return err == nil && !there
}

// stopUnwanted stops the agents of this relay whose instance is no longer in the inventory or is on another server. It
// only logs an agent that does not stop, because other instances must not be affected.
func (m *agentManager) stopUnwanted(ctx context.Context, servers []relay.Server, paths map[string]string) {
	if m.relay == anyRelay {
		return // agents without a relay ID may belong to another relay
	}
	agents, err := Agents()
	if err != nil {
		slog.Default().Warn("could not list agent processes", "error", err)
		return
	}
	homes := make(map[string]string) // instance directories according to the inventory
	isServer := make(map[string]bool)
	for _, s := range servers {
		isServer[paths[s.ID]] = true
		for _, instance := range s.Instances {
			homes[instance] = filepath.Join(paths[s.ID], instance)
		}
	}
	stopping := []Agent{}
	for _, a := range agents {
		if a.Relay != m.relay || a.uid != os.Geteuid() || isServer[filepath.Clean(a.Path)] &&
			a.isWanted(homes[a.Instance]) {
			continue
		}
		slog.Default().Info("stopping agent of an instance that is not in the inventory", "pid", a.PID, "instance_id",
			a.Instance, "path", a.Path)
		if err := a.sendTerm(); err != nil {
			slog.Default().Warn("could not stop agent", "error", err)
			continue
		}
		stopping = append(stopping, a)
	}
	_, _ = pollUntil(ctx, agentStopTimeout, func() (bool, error) {
		stopping = slices.DeleteFunc(stopping, func(a Agent) bool { return !a.isRunning() })
		m.isAlive(0)
		return len(stopping) == 0, nil
	})
	for _, a := range stopping {
		slog.Default().Warn("agent did not stop", "pid", a.PID, "instance_id", a.Instance)
	}
}

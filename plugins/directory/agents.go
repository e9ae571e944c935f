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

// anyRelay replaces the ID of a relay that has none.
const anyRelay = "none"

// agentArgs is the number of arguments that RunAgent needs.
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
	if os.Geteuid() != 0 { // another user could pretend to have agents
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

// Stop tells the agent to end its command and itself, and returns when it has ended. The command is killed after 10 s.
func (a Agent) Stop(ctx context.Context) error {
	if err := a.sendTerm(); err != nil {
		return err
	}
	ended, err := pollUntil(ctx, agentStopTimeout, func() (bool, error) { return !a.isRunning(), nil })
	if err == nil && !ended {
		err = errors.New("it does not end")
	}
	if err != nil {
		return fmt.Errorf("stop agent %d of instance %s: %w", a.PID, a.Instance, err)
	}
	return nil
}

// sendTerm sends SIGTERM. The process is looked up before it is checked, so its PID cannot be reused in between.
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

// isRunning reports whether the process still is this agent.
func (a Agent) isRunning() bool {
	now, ok := agentAt(a.PID)
	return ok && now.Path == a.Path && now.Instance == a.Instance && now.Relay == a.Relay
}

// isWanted reports whether the agent works in the home of its instance in the inventory, which is empty for an unknown
// instance. During a migration that home does not exist, and the agent at the destination is wanted too.
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

// stopUnnamed stops the agents of this relay whose instance has left the inventory or is on another server. It only
// logs an agent that does not end, because other instances must not be affected.
func (ks *agentManager) stopUnnamed(ctx context.Context, servers []relay.Server, paths map[string]string) {
	if ks.relay == anyRelay {
		return // they may belong to anybody
	}
	agents, err := Agents()
	if err != nil {
		slog.Default().Warn("agent processes not listed", "error", err)
		return
	}
	homes := make(map[string]string) // of instances, by the inventory
	isServer := make(map[string]bool)
	for _, s := range servers {
		isServer[paths[s.ID]] = true
		for _, instance := range s.Instances {
			homes[instance] = filepath.Join(paths[s.ID], instance)
		}
	}
	stopping := []Agent{}
	for _, a := range agents {
		if a.Relay != ks.relay || a.uid != os.Geteuid() || isServer[filepath.Clean(a.Path)] &&
			a.isWanted(homes[a.Instance]) {
			continue
		}
		slog.Default().Info("agent stopped, the inventory does not name its instance", "pid", a.PID, "instance",
			a.Instance, "path", a.Path)
		if err := a.sendTerm(); err != nil {
			slog.Default().Warn("agent not stopped", "error", err)
			continue
		}
		stopping = append(stopping, a)
	}
	_, _ = pollUntil(ctx, agentStopTimeout, func() (bool, error) {
		stopping = slices.DeleteFunc(stopping, func(a Agent) bool { return !a.isRunning() })
		ks.isAlive(0)
		return len(stopping) == 0, nil
	})
	for _, a := range stopping {
		slog.Default().Warn("agent does not end", "pid", a.PID, "instance", a.Instance)
	}
}

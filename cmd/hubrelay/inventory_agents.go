package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/plugins/directory"
)

func newInventoryAgents(std streams) *cobra.Command {
	cmd := commandGroup("agents", "List and stop the processes that keep instances running",
		newAgentsList(std), newAgentsStop(std))
	cmd.Long = `Lists and stops the agents of builtin:directory on this machine. An agent keeps the command of one instance running,
also while the daemon is stopped. It ends when the inventory no longer names its instance. These commands need no running daemon;
run them as the daemon's user or as root.`
	return cmd
}

func newAgentsList(std streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the agents on this machine",
		Long: `Lists the agents on this machine. RELAY is the ID of the relay that started the agent: relays with other data have other IDs.

--json prints a line for each agent.`,
		Args: withUsageErrors(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			agents, err := directory.Agents()
			if err != nil {
				return err
			}
			return printAgents(std, agents, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON lines")
	return cmd
}

func printAgents(std streams, agents []directory.Agent, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(std.out)
		for _, a := range agents {
			if err := enc.Encode(struct {
				Instance string    `json:"instance"`
				Path     string    `json:"path"`
				PID      int       `json:"pid"`
				Relay    string    `json:"relay"`
				Started  time.Time `json:"started"`
			}{a.Instance, a.Path, a.PID, a.Relay, a.Started.UTC()}); err != nil {
				return err
			}
		}
		return nil
	}
	if len(agents) == 0 {
		_, err := fmt.Fprintln(std.out, "no agents run on this machine")
		return err
	}
	rows := make([][]string, 0, len(agents))
	for _, a := range agents {
		rows = append(rows, []string{
			sanitizeForTerminal(a.Instance), strconv.Itoa(a.PID), a.Started.Format(time.DateTime), sanitizeForTerminal(a.Relay), sanitizeForTerminal(a.Path),
		})
	}
	return printTable(std.out, paletteFor(std.out, std.env), []column{
		{title: "INSTANCE", maxWidth: 40},
		{title: "PID", right: true},
		{title: "STARTED"},
		{title: "RELAY"},
		{title: "SERVER PATH"},
	}, rows)
}

func newAgentsStop(std streams) *cobra.Command {
	return &cobra.Command{
		Use:   "stop INSTANCE|PID…",
		Short: "Stop the agents of instances, with their commands",
		Long: `Stops agents on this machine and waits until they have ended. A command gets SIGTERM, and SIGKILL after 10 seconds.

An instance that the inventory names is started again when the daemon starts or its inventory changes. To stop it for good,
remove it from the inventory.`,
		Example: `  hubrelay inventory agents stop shop-1
  hubrelay inventory agents stop 4711`,
		Args: withUsageErrors(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			agents, err := directory.Agents()
			if err != nil {
				return err
			}
			chosen, err := chooseAgents(agents, args)
			if err != nil {
				return err
			}
			for _, a := range chosen {
				if err := a.Stop(cmd.Context()); err != nil {
					return err
				}
				if _, err := fmt.Fprintf(std.out, "stopped the agent of %s (PID %d)\n", sanitizeForTerminal(a.Instance), a.PID); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// chooseAgents finds the agents by instance or PID. All names must be known, so a mistake stops nothing.
func chooseAgents(agents []directory.Agent, names []string) ([]directory.Agent, error) {
	var chosen []directory.Agent
	for _, name := range names {
		found := slices.DeleteFunc(slices.Clone(agents), func(a directory.Agent) bool { return strconv.Itoa(a.PID) != name })
		if len(found) == 0 {
			found = slices.DeleteFunc(slices.Clone(agents), func(a directory.Agent) bool { return a.Instance != name })
		}
		switch len(found) {
		case 0:
			return nil, fmt.Errorf("no agent of %q runs on this machine: 'hubrelay inventory agents list' shows those there are", name)
		case 1:
			chosen = append(chosen, found[0])
		default:
			return nil, errors.New("several agents have the instance " + strconv.Quote(name) + ": give a PID of 'hubrelay inventory agents list'")
		}
	}
	return chosen, nil
}

package admincli

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/plugins/directory"
)

func newInventoryAgents(std term.Streams) *cobra.Command {
	cmd := command.NewGroup("agents", "List and stop the processes that keep instances running",
		newAgentsList(std), newAgentsStop(std))
	cmd.Long = `Lists and stops the agents of builtin:directory on this machine. An agent keeps the command of one
instance running, even while the relay is stopped. It ends when its instance is removed from the inventory. These
commands need no running relay. Run them as the user of the relay or as root.`
	return cmd
}

func newAgentsList(std term.Streams) *cobra.Command {
	var output command.Output
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the agents on this machine",
		Long:  `Lists the agents on this machine. RELAY is the ID of the relay that started the agent.`,
		Args:  command.ExactNamedArgs(0),
		RunE: func(*cobra.Command, []string) error {
			agents, err := directory.Agents()
			if err != nil {
				return err
			}
			return printAgents(std, &output, agents)
		},
	}
	output.Register(cmd.Flags())
	return cmd
}

func printAgents(std term.Streams, o *command.Output, agents []directory.Agent) error {
	if !o.IsTable() {
		list := o.NewList(std.Out)
		for _, a := range agents {
			if err := list.Write(struct {
				Instance string    `json:"instance_id"`
				Path     string    `json:"path"`
				PID      int       `json:"pid"`
				Relay    string    `json:"relay"`
				Started  time.Time `json:"started_at"`
			}{a.Instance, a.Path, a.PID, a.Relay, a.Started.UTC()}); err != nil {
				return err
			}
		}
		return list.Close()
	}
	if len(agents) == 0 {
		_, err := fmt.Fprintln(std.Out, "no agents are running on this machine")
		return err
	}
	rows := make([][]string, 0, len(agents))
	for _, a := range agents {
		rows = append(rows, []string{
			term.Sanitize(a.Instance), strconv.Itoa(a.PID), formatTime(a.Started), term.Sanitize(
				a.Relay), term.Sanitize(a.Path),
		})
	}
	return term.PrintTable(std.Out, term.NewPalette(std.Out, std.Env), []term.Column{
		{Title: "INSTANCE", MaxWidth: 40},
		{Title: "PID", Right: true},
		{Title: "STARTED"},
		{Title: "RELAY"},
		{Title: "SERVER PATH"},
	}, rows)
}

func newAgentsStop(std term.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "stop INSTANCE|PID…",
		Short: "Stop the agents of instances, with their commands",
		Long: `Stops agents on this machine and waits until they have ended. A command receives SIGTERM, and SIGKILL
after 10 seconds.

If an instance is in the inventory, the relay starts it again when the relay starts or the inventory changes. Remove
the instance from the inventory to stop it permanently.`,
		Example: `  hubrelay inventory agents stop shop-1
  hubrelay inventory agents stop 4711`,
		Args: command.NamedArgs(1, math.MaxInt),
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
				if _, err := fmt.Fprintf(std.Out, "stopped the agent of %s (PID %d)\n", term.Sanitize(a.Instance),
					a.PID); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// chooseAgents finds the agents by instance or PID. All names must be known, so a typo stops no agents.
func chooseAgents(agents []directory.Agent, names []string) ([]directory.Agent, error) {
	var chosen []directory.Agent
	for _, name := range names {
		found := slices.DeleteFunc(slices.Clone(agents),
			func(a directory.Agent) bool { return strconv.Itoa(a.PID) != name })
		if len(found) == 0 {
			found = slices.DeleteFunc(slices.Clone(agents), func(a directory.Agent) bool { return a.Instance != name })
		}
		switch len(found) {
		case 0:
			return nil, fmt.Errorf("no agent of %q is running on this machine: 'hubrelay inventory agents list' shows "+
				"all agents", name)
		case 1:
			chosen = append(chosen, found[0])
		default:
			return nil, errors.New("several agents have the instance " + strconv.Quote(name) +
				": use a PID from 'hubrelay inventory agents list'")
		}
	}
	return chosen, nil
}

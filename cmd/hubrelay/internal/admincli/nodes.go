package admincli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

func newNodes(std term.Streams) *cobra.Command {
	cmd := command.NewGroup("nodes", "Show the nodes of a relay", newNodesList(std))
	cmd.Long = `Shows the nodes of a relay: its processes, which share a Redis.

` + adminHelp
	return cmd
}

func newNodesList(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the nodes that are running",
		Long: `Lists the nodes that are running. READY is "no" with the reason below the table if a node accepts no requests.
CLIENTS are connected to streams of the node. A node writes its state every five seconds. A killed one is listed for
ten more seconds.`,
		Example: `  hubrelay nodes list
  hubrelay nodes list --json | jq 'select(.not_ready != "")'`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return callAndPrintList(cmd.Context(), std, &f, adminapi.ListNodes(),
				func(list []adminapi.Node) error { return printNodes(std, list) }, "no nodes")
		},
	}
	f.register(cmd, std)
	return cmd
}

func printNodes(std term.Streams, list []adminapi.Node) error {
	var rows [][]string
	var notes []string
	for _, n := range list {
		if n.SeenAt.IsZero() {
			rows = append(rows, []string{term.Sanitize(n.Name), "unknown", "-", "-", "-", "-"})
			continue
		}
		ready := "yes"
		if n.NotReady != "" {
			ready = "no"
			notes = append(notes, term.Sanitize(n.Name+" is not ready: "+n.NotReady))
		}
		if n.ConfigWarning != "" {
			notes = append(notes, term.Sanitize(n.Name+": "+n.ConfigWarning))
		}
		rows = append(rows, []string{
			term.Sanitize(n.Name), ready, orDash(n.Host), orDash(n.Version), term.FormatAgo(n.StartedAt), strconv.Itoa(n.Clients),
		})
	}
	paint := term.NewPalette(std.Out, std.Env)
	err := term.PrintTableWithin(std.Out, paint, term.Width(std.Out), []term.Column{
		{Title: "NODE"},
		{Title: "READY", Paint: func(cell, padded string) string {
			if cell == "yes" {
				return paint.Green(padded)
			}
			return paint.Yellow(padded)
		}},
		{Title: "HOST", MaxWidth: 32},
		{Title: "VERSION", DropOrder: 1},
		{Title: "UPTIME", Right: true},
		{Title: "CLIENTS", Right: true},
	}, rows)
	if err != nil || len(notes) == 0 {
		return err
	}
	_, err = fmt.Fprintf(std.Out, "\n%s\n", strings.Join(notes, "\n"))
	return err
}

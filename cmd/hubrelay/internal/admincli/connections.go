package admincli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

func newConnections(std term.Streams) *cobra.Command {
	cmd := command.NewGroup("connections", "Show the clients of a node", newConnectionsList(std))
	cmd.Long = `Shows the clients that are connected to a node. Other nodes have their own clients.

` + adminHelp
	return cmd
}

func newConnectionsList(std term.Streams) *cobra.Command {
	var f adminFlags
	var request adminapi.ListConnectionsRequest
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List connected clients, oldest connection first",
		Long: `Lists the clients of streams that are connected to a node, the oldest first. Other TCP connections are not listed.

STATE is live; replaying, while a client receives missed events; or closing; then TOPICS is empty. CONNECTED is the
age of the connection, QUEUED the bytes in its write queue. HUB is the hub whose events the client receives; "account …"
is the stream of an account, "account *" of all accounts.`,
		Example: `  hubrelay connections list --hub 5f0c8a7e9d3b2a1c4e6f8a90
  hubrelay connections list --json | jq 'select(.queued_bytes > 0)'`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return listConnections(cmd.Context(), std, &f, request)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&request.HubID, "hub", "", "only connections to the stream of this hub")
	flags.StringVar(&request.Key, "key", "", "only clients with the API key of this name (not its secret)")
	f.register(cmd, std)
	return cmd
}

func listConnections(
	ctx context.Context, std term.Streams, f *adminFlags, request adminapi.ListConnectionsRequest,
) error {
	c, err := f.connect(std)
	if err != nil {
		return err
	}
	empty := "no clients"
	if request.HubID != "" || request.Key != "" {
		empty += " match"
	}
	return printPages(std, &f.Output, func(visit func([]adminapi.Connection) error) error {
		return forEachPage(ctx, c, adminapi.ListConnections(), func(p adminapi.PageRequest) adminapi.ListConnectionsRequest {
			request.PageRequest = p
			return request
		}, visit)
	}, func(page []adminapi.Connection) error {
		rows := make([][]string, len(page))
		for i := range page {
			rows[i] = connectionRow(&page[i])
		}
		return printConnections(std, rows)
	}, empty)
}

func connectionRow(c *adminapi.Connection) []string {
	hub := c.HubID
	if hub == "" {
		hub = strings.TrimSpace("account " + c.AccountID)
	}
	return []string{
		term.Sanitize(c.Address), term.Sanitize(c.Type), term.Sanitize(c.State), term.FormatAgo(c.ConnectedAt),
		term.FormatCount(int64(c.QueuedBytes)), term.Sanitize(c.Key), term.Sanitize(hub),
		orDash(strings.Join(c.Topics, ", ")),
	}
}

func printConnections(std term.Streams, rows [][]string) error {
	paint := term.NewPalette(std.Out, std.Env)
	state := func(cell, padded string) string {
		if cell == "live" {
			return paint.Green(padded)
		}
		return paint.Yellow(padded)
	}
	return term.PrintTableWithin(std.Out, paint, term.Width(std.Out), []term.Column{
		{Title: "ADDRESS"},
		{Title: "TYPE", DropOrder: 2},
		{Title: "STATE", Paint: state},
		{Title: "CONNECTED", Right: true},
		{Title: "QUEUED", Right: true},
		{Title: "KEY", MaxWidth: 16},
		{Title: "HUB", MaxWidth: 32},
		{Title: "TOPICS", DropOrder: 1},
	}, rows)
}

package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

// connectionInfo is a client of the stream in the admin API.
type connectionInfo struct {
	Hub     string   `json:"hub_id"`
	Account string   `json:"account_id"`
	Key     string   `json:"key"`
	Remote  string   `json:"remote"`
	Type    string   `json:"type"`
	Since   string   `json:"since"`
	Topics  []string `json:"topics"`
	Queued  int64    `json:"queued_bytes"`
	State   string   `json:"state"`
}

func newConnections(std term.Streams) *cobra.Command {
	cmd := commandGroup("connections", "Show the clients of a running daemon", newConnectionsList(std))
	cmd.Long = `Shows the clients that are connected to a running daemon. Other nodes have their own clients.

` + adminHelp
	return cmd
}

func newConnectionsList(std term.Streams) *cobra.Command {
	var f adminFlags
	var hub, key string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List connected clients, oldest connection first",
		Long: `Lists the clients that are connected to a running daemon, oldest connection first.

STATE is live; replaying, while a client receives missed events; or closing, when its TOPICS are unknown. SINCE is the
age of the connection, QUEUED the number of unsent bytes. HUB is the hub whose events the client receives; "account …"
is the pipeline of an account, "account *" of all accounts.`,
		Example: `  hubrelay connections list --hub 5f0c8a7e9d3b2a1c4e6f8a90
  hubrelay connections list --json | jq 'select(.queued_bytes > 0)'`,
		Args: WithUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			for name, value := range map[string]string{"hub": hub, "key": key} {
				if value != "" {
					query.Set(name, value)
				}
			}
			return listConnections(cmd, std, &f, query)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&hub, "hub", "", "only connections to the pipeline of this hub")
	flags.StringVar(&key, "key", "", "only connections of the API key with this name")
	f.register(cmd, std)
	return cmd
}

func listConnections(cmd *cobra.Command, std term.Streams, f *adminFlags, query url.Values) error {
	client, err := f.newClient(std)
	if err != nil {
		return err
	}
	found := false
	err = forEachPage(cmd.Context(), client, "/api/connections", query, func(page []json.RawMessage) error {
		found = found || len(page) > 0
		if f.asJSON {
			return printRaw(std, page...)
		}
		var rows [][]string
		for _, raw := range page {
			var c connectionInfo
			if err := decodeData(raw, &c); err != nil {
				return err
			}
			rows = append(rows, c.tableRow())
		}
		if len(rows) == 0 {
			return nil
		}
		return printConnections(std, rows)
	})
	if err == nil && !found && !f.asJSON {
		message := "no clients"
		if len(query) > 0 {
			message += " match"
		}
		_, err = fmt.Fprintln(std.Out, message)
	}
	return err
}

func (c *connectionInfo) tableRow() []string {
	hub := c.Hub
	if hub == "" {
		hub = strings.TrimSpace("account " + c.Account)
	}
	return []string{
		term.Sanitize(c.Remote), term.Sanitize(c.Type), term.Sanitize(c.State), term.FormatAgo(
			c.Since), term.FormatCount(c.Queued), term.Sanitize(c.Key), term.Sanitize(hub),
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
		{Title: "REMOTE"},
		{Title: "TYPE", DropOrder: 2},
		{Title: "STATE", Paint: state},
		{Title: "SINCE", Right: true},
		{Title: "QUEUED", Right: true},
		{Title: "KEY", MaxWidth: 16},
		{Title: "HUB", MaxWidth: 32},
		{Title: "TOPICS", DropOrder: 1},
	}, rows)
}

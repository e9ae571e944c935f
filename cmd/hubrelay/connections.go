package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

// connectionInfo is what the admin API says of a client of the stream.
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

func newConnections(std streams) *cobra.Command {
	cmd := commandGroup("connections", "See the clients of a running daemon's stream", newConnectionsList(std))
	cmd.Long = `Shows the clients that follow the stream of a running daemon, which is one node.

` + adminHelp
	return cmd
}

func newConnectionsList(std streams) *cobra.Command {
	var f adminFlags
	var hub, key string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the clients of the stream, those first who have been there longest",
		Long: `Lists the clients that follow the stream of a running daemon, those first who have been there longest.

STATE is live; replaying, while a client is given what it has missed; or closing, whose TOPICS are known no more.
SINCE is how long it has been there, QUEUED how many bytes wait for it to read.
HUB is whose pipeline it follows; "account …" is the pipeline of an account, * of all.`,
		Example: `  hubrelay connections list --hub 5f0c8a7e9d3b2a1c4e6f8a90
  hubrelay connections list --json | jq 'select(.queued_bytes > 0)'`,
		Args: withUsageErrors(cobra.NoArgs),
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
	flags.StringVar(&hub, "hub", "", "only those of this hub's pipeline")
	flags.StringVar(&key, "key", "", "only those of the key with this name")
	f.register(cmd, std)
	return cmd
}

func listConnections(cmd *cobra.Command, std streams, f *adminFlags, query url.Values) error {
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
			if err := readAnswer(raw, &c); err != nil {
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
		none := "no clients"
		if len(query) > 0 {
			none += " match"
		}
		_, err = fmt.Fprintln(std.out, none)
	}
	return err
}

func (c *connectionInfo) tableRow() []string {
	hub := c.Hub
	if hub == "" {
		hub = strings.TrimSpace("account " + c.Account)
	}
	return []string{
		sanitizeForTerminal(c.Remote), sanitizeForTerminal(c.Type), sanitizeForTerminal(c.State), formatAgo(c.Since), formatCount(c.Queued), sanitizeForTerminal(c.Key), sanitizeForTerminal(hub),
		orDash(strings.Join(c.Topics, ", ")),
	}
}

func printConnections(std streams, rows [][]string) error {
	paint := paletteFor(std.out, std.env)
	state := func(cell, padded string) string {
		if cell == "live" {
			return paint.green(padded)
		}
		return paint.yellow(padded)
	}
	return printTableWithin(std.out, paint, widthFor(std.out), []column{
		{title: "REMOTE"},
		{title: "TYPE", dropOrder: 2},
		{title: "STATE", paint: state},
		{title: "SINCE", right: true},
		{title: "QUEUED", right: true},
		{title: "KEY", maxWidth: 16},
		{title: "HUB", maxWidth: 32},
		{title: "TOPICS", dropOrder: 1},
	}, rows)
}

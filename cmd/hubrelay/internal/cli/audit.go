package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

// auditEntry is an entry of the audit log in the admin API.
type auditEntry struct {
	Time    string `json:"time"`
	Actor   string `json:"actor"`
	Source  string `json:"source"`
	Action  string `json:"action"`
	Target  string `json:"target"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail"`
	// Repeated is the number of further entries that this one summarizes.
	Repeated int `json:"repeated,omitempty"`
}

// maxDetailWidth is the width of the details in the table. The JSON output has all of them.
const maxDetailWidth = 60

func newAudit(std term.Streams) *cobra.Command {
	var f adminFlags
	filters := make(map[string]*string)
	var since string
	var limit int
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Search the audit log of a running daemon",
		Long: `Lists security-relevant actions of all nodes, newest first: failed authentications, changed keys and
configurations, revoked tokens, refused publishes, exceeded quotas, disabled sinks, migrations, and all changes made with
the admin API.

OUTCOME is ok, or the code of the error. An action also selects the actions below it: sinks selects sinks.pause.

` + adminHelp,
		Example: `  hubrelay audit --since 24h --action authenticate
  hubrelay audit --actor "admin alice" --json | jq .`,
		Args: WithUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{"limit": {strconv.Itoa(limit)}}
			for name, value := range filters {
				if *value != "" {
					query.Set(name, *value)
				}
			}
			if since != "" {
				t, err := parseSince(since, time.Now())
				if err != nil {
					return NewUsageError(cmd, err)
				}
				query.Set("since", t.UTC().Format(time.RFC3339))
			}
			return listAudit(cmd, std, &f, query)
		},
	}
	flags := cmd.Flags()
	for name, help := range map[string]string{
		"action": "only this action and the actions below it",
		"actor":  `only actions of this actor, such as "key ops"`,
		"source": "only actions from this address",
		"target": "only actions on this target, such as a sink",
	} {
		filters[name] = flags.String(name, "", help)
	}
	flags.StringVar(&since, "since", "", "only actions since a duration ago, such as 1d, or since a time (RFC 3339)")
	flags.IntVar(&limit, "limit", 100, "maximum number of entries, 1 to 10000")
	f.register(cmd, std)
	cmd.AddCommand(newAuditVerify(std))
	return cmd
}

func listAudit(cmd *cobra.Command, std term.Streams, f *adminFlags, query url.Values) error {
	client, err := f.newClient(std)
	if err != nil {
		return err
	}
	var answer struct{ Data []json.RawMessage }
	if err := client.get(cmd.Context(), "/api/audit", query, &answer); err != nil {
		return err
	}
	if f.asJSON {
		return printRaw(std, answer.Data...)
	}
	if len(answer.Data) == 0 {
		_, err := fmt.Fprintln(std.Out, "no entries")
		return err
	}
	var rows [][]string
	for _, raw := range answer.Data {
		var e auditEntry
		if err := decodeData(raw, &e); err != nil {
			return err
		}
		if e.Repeated > 0 {
			e.Action += fmt.Sprintf(" (%d times more)", e.Repeated)
		}
		row := []string{e.Time, e.Outcome, e.Action, e.Actor, e.Source, e.Target, e.Detail}
		for i := range row {
			row[i] = orDash(term.Sanitize(row[i]))
		}
		rows = append(rows, row)
	}
	paint := term.NewPalette(std.Out, std.Env)
	outcome := func(cell, padded string) string {
		if cell == "ok" {
			return paint.Green(padded)
		}
		return paint.Yellow(padded)
	}
	return term.PrintTableWithin(std.Out, paint, term.Width(std.Out), []term.Column{
		{Title: "TIME"},
		{Title: "OUTCOME", Paint: outcome},
		{Title: "ACTION"},
		{Title: "ACTOR"},
		{Title: "SOURCE"},
		{Title: "TARGET", DropOrder: 2},
		{Title: "DETAIL", DropOrder: 1, MaxWidth: maxDetailWidth},
	}, rows)
}

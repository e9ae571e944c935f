package admincli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// maxDetailWidth is the width of the details in the table. The JSON output has all of them.
const maxDetailWidth = 60

func newAudit(std term.Streams) *cobra.Command {
	var f adminFlags
	var request adminapi.ListAuditRequest
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Search the audit log of a running relay",
		Long: `Lists security-relevant actions of all nodes, newest first: failed authentications, changed keys and
configurations, revoked tokens, rejected publishes, exceeded quotas, disabled sinks, migrations, and all changes made with
the admin API.

RESULT is that of the request: ok, the code of the error, or rejected for a configuration that was not applied. The request
for a test of a sink is ok if an attempt was made; DETAIL has its outcome. An action also selects the
actions below it: sinks selects sinks.pause.

` + adminHelp,
		Example: `  hubrelay audit --since 24h --action authenticate
  hubrelay audit --actor "admin alice" --json | jq .`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if request.Limit < 1 {
				return command.NewUsageError(cmd, errors.New("--limit must be at least 1"))
			}
			if err := command.FixTimeFlag(cmd, "since", &request.Since); err != nil {
				return err
			}
			return listAudit(cmd.Context(), std, &f, request)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&request.Action, "action", "", "only this action and the actions below it")
	flags.StringVar(&request.Actor, "actor", "", `only actions of this actor, such as "key ops"`)
	flags.StringVar(&request.AccountID, "account", "", "only actions of keys of this account")
	flags.StringVar(&request.Address, "address", "", "only actions from this address")
	flags.StringVar(&request.Target, "target", "", "only actions on this target, such as a sink")
	flags.StringVar(&request.Since, "since", "", "only actions newer than an age such as 2h, or a time (RFC 3339)")
	flags.IntVar(&request.Limit, "limit", 100, "maximum number of entries")
	f.register(cmd, std)
	cmd.AddCommand(newAuditVerify(std))
	return cmd
}

func listAudit(ctx context.Context, std term.Streams, f *adminFlags, request adminapi.ListAuditRequest) error {
	c, err := f.connect(std)
	if err != nil {
		return err
	}
	isCut := false
	err = printPages(std, &f.Output, func(visit func([]adminapi.AuditEntry) error) error {
		list, more, err := findAuditEntries(ctx, c, request)
		isCut = more
		return errors.Join(err, visit(list))
	}, func(list []adminapi.AuditEntry) error { return printAudit(std, list) }, "no entries")
	if err == nil && isCut && f.IsTable() {
		_, err = fmt.Fprintf(std.Err, "these are the newest %d: use a larger --limit to see older ones\n", request.Limit)
	}
	return err
}

// findAuditEntries returns up to request.Limit entries, and whether there may be more.
func findAuditEntries(
	ctx context.Context, c *adminConn, request adminapi.ListAuditRequest,
) (list []adminapi.AuditEntry, more bool, err error) {
	return findNewest(request.Limit, func(limit int, after string) ([]adminapi.AuditEntry, string, error) {
		request.Limit, request.After = limit, after
		page, err := callRelay(ctx, c, adminapi.ListAudit(), request)
		return page.Data, page.Next, err
	})
}

func printAudit(std term.Streams, list []adminapi.AuditEntry) error {
	var rows [][]string
	for _, e := range list {
		if e.Repeated > 0 {
			e.Action += " (" + term.Pluralize(e.Repeated, "more time") + ")"
		}
		rows = append(rows, newRow(
			formatTime(e.Time), e.Result, e.Action, e.Actor, e.AccountID, e.Address, e.Target, e.Detail,
		))
	}
	paint := term.NewPalette(std.Out, std.Env)
	result := func(cell, padded string) string {
		if cell == "ok" {
			return paint.Green(padded)
		}
		return paint.Yellow(padded)
	}
	return term.PrintTableWithin(std.Out, paint, term.Width(std.Out), []term.Column{
		{Title: "TIME"},
		{Title: "RESULT", Paint: result},
		{Title: "ACTION"},
		{Title: "ACTOR"},
		{Title: "ACCOUNT", DropOrder: 3},
		{Title: "ADDRESS"},
		{Title: "TARGET", DropOrder: 2},
		{Title: "DETAIL", DropOrder: 1, MaxWidth: maxDetailWidth},
	}, rows)
}

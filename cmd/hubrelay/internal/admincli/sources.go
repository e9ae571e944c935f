package admincli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

func newSources(std term.Streams) *cobra.Command {
	cmd := command.NewGroup("sources", "Show the sources of a running relay", newSourcesList(std))
	cmd.Long = `Shows the upstream relays that a running relay copies events from.

` + adminHelp
	return cmd
}

func newSourcesList(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List sources with their state and stats",
		Long: `Lists the sources of a running relay.

STATE is connected; connecting; retrying, if the upstream is not available; rejected, if an operator must
fix a problem; or unread, if no node reads the source. STATE AGE is the time since the state changed, NODE the node that
reads the source.

LAST EVENT is the time since an event was stored. STORED counts stored events, QUARANTINED the invalid ones, and
GAPS possible losses, on all nodes since the source was configured. RESUMES shows whether the upstream sends cursors.
Without cursors, events sent while no node is connected are lost. Columns without values are omitted.`,
		Example: `  hubrelay sources list
  hubrelay sources list --json | jq 'select(.state != "connected")'`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return callAndPrintList(cmd.Context(), std, &f, adminapi.ListSources(),
				func(list []adminapi.Source) error { return printSourceList(std, list) }, "no sources: add some to sources: in the configuration of the relay")
		},
	}
	f.register(cmd, std)
	return cmd
}

func printSourceList(std term.Streams, list []adminapi.Source) error {
	var rows [][]string
	var notes []string
	for i := range list {
		rows = append(rows, sourceRow(&list[i]))
		notes = append(notes, sourceNotes(&list[i])...)
	}
	if err := printSources(std, rows); err != nil || len(notes) == 0 {
		return err
	}
	_, err := fmt.Fprint(std.Out, "\n", strings.Join(notes, "\n"), "\n")
	return err
}

func sourceRow(s *adminapi.Source) []string {
	resumes, hub, topics := "no", "account", "*"
	if s.Resumes {
		resumes = "yes"
	}
	if s.HubID != "" {
		hub = term.Sanitize(s.HubID)
	}
	if len(s.Topics) > 0 {
		topics = term.Sanitize(strings.Join(s.Topics, ", "))
	}
	return []string{
		term.Sanitize(s.Name), term.Sanitize(s.State), term.FormatAgo(s.StateChangedAt), orDash(s.Node), hub,
		term.FormatAgo(s.LastEventAt), term.FormatCount(s.Stored), term.FormatCount(s.Quarantined),
		term.FormatCount(s.Gaps), resumes, term.Sanitize(s.URL), topics,
	}
}

// sourceNotes returns problems that do not fit into the table.
func sourceNotes(s *adminapi.Source) (list []string) {
	if s.Reason != "" {
		note := s.Name + ": " + s.Reason
		if !s.NextAttemptAt.IsZero() {
			note += "; the next attempt is at " + formatTime(s.NextAttemptAt)
		}
		list = append(list, term.Sanitize(note))
	}
	if s.Quarantined > 0 {
		list = append(list, term.Sanitize(s.Name+": 'hubrelay quarantine list' shows the rejected events with the reasons"))
	}
	return list
}

func printSources(std term.Streams, rows [][]string) error {
	paint := term.NewPalette(std.Out, std.Env)
	state := func(cell, padded string) string {
		switch cell {
		case "connected":
			return paint.Green(padded)
		case "connecting", "retrying", adminapi.SourceUnread:
			return paint.Yellow(padded)
		}
		return paint.Red(padded)
	}
	columns := []term.Column{
		{Title: "NAME", MaxWidth: 20},
		{Title: "STATE", MaxWidth: 10, Paint: state},
		{Title: "STATE AGE", Right: true},
		{Title: "NODE", MaxWidth: 10, DropOrder: 2},
		{Title: "HUB", MaxWidth: 24},
		{Title: "LAST EVENT", Right: true},
		{Title: "STORED", Right: true},
		{Title: "QUARANTINED", Right: true, DropOrder: 5},
		{Title: "GAPS", Right: true},
		{Title: "RESUMES", DropOrder: 1},
		{Title: "URL", DropOrder: 3},
		{Title: "TOPICS", DropOrder: 4},
	}
	for i := len(columns) - 1; i >= 0; i-- {
		if !slices.ContainsFunc(rows, func(row []string) bool { return row[i] != "-" }) {
			columns, rows = term.RemoveColumn(columns, rows, i)
		}
	}
	return term.PrintTable(std.Out, paint, columns, rows)
}

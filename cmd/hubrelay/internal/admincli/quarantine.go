package admincli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// maxCorrected is the maximum size of an event in bytes.
const maxCorrected = 256 << 10

func newQuarantine(std term.Streams) *cobra.Command {
	cmd := command.NewGroup("quarantine", "Show, correct and drop invalid events of the inbox and of sources",
		newQuarantineList(std), newQuarantineShow(std), newQuarantineReplay(std), newQuarantineDrop(std))
	cmd.Long = `The quarantine has the invalid entries of the inbox and of sources, with the reason. Invalid
requests to publish are not stored; the client gets an error. It keeps about the newest 100,000 entries.

` + adminHelp
	return cmd
}

func newQuarantineList(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List rejected entries, oldest first",
		Long: `Lists the entries of the quarantine, oldest first. FROM is inbox, or source and its name. SIZE is the size
of the content in bytes. 'quarantine show' prints the content of one.`,
		Example: "  hubrelay quarantine list\n  hubrelay quarantine list --json | jq -r .reason | sort | uniq -c",
		Args:    command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return callAndPrintList(cmd.Context(), std, &f, adminapi.ListQuarantine(),
				func(list []adminapi.QuarantinedEntry) error { return printQuarantine(std, list) }, "the quarantine is empty")
		},
	}
	f.register(cmd, std)
	return cmd
}

func printQuarantine(std term.Streams, list []adminapi.QuarantinedEntry) error {
	rows := make([][]string, len(list))
	for i := range list {
		e := &list[i]
		rows[i] = []string{
			term.Sanitize(e.ID), term.FormatAgo(e.Time), term.Sanitize(originOf(e)), strconv.Itoa(e.Size), term.Sanitize(e.Reason),
		}
	}
	return term.PrintTableWithin(std.Out, term.NewPalette(std.Out, std.Env), term.Width(std.Out), []term.Column{
		{Title: "ID"},
		{Title: "REJECTED", Right: true},
		{Title: "FROM", MaxWidth: 24, DropOrder: 2},
		{Title: "SIZE", Right: true, DropOrder: 1},
		{Title: "REASON", MinWidth: 32},
	}, rows)
}

// originOf returns where an entry came from.
func originOf(e *adminapi.QuarantinedEntry) string {
	if e.Source != "" {
		return "source " + e.Source
	}
	return "inbox"
}

func newQuarantineShow(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show a rejected entry with its content",
		Long: `Shows an entry of the inbox or of a source that the relay has rejected: the reasons, and the content. ID is in the first
column of 'hubrelay quarantine list'. 'quarantine replay' publishes the entry again, corrected if necessary.`,
		Example: "  hubrelay quarantine show 1732153000123-0\n  hubrelay quarantine show 1732153000123-0 --json | jq -r .data > event.json",
		Args:    command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callAndPrint(cmd.Context(), std, &f, adminapi.ShowQuarantined(), adminapi.Empty{},
				func(e adminapi.QuarantinedEntryDetails) error { return showQuarantined(std, &e) }, args...)
		},
	}
	f.register(cmd, std)
	return cmd
}

func showQuarantined(std term.Streams, e *adminapi.QuarantinedEntryDetails) error {
	p := term.NewPalette(std.Out, std.Env)
	var b strings.Builder
	line := fieldWriter(&b, p, 15)
	line("id", e.ID)
	line("from", originOf(&e.QuarantinedEntry))
	line("inbox ID", e.InboxID)
	line("idempotency key", e.IdempotencyKey)
	line("rejected", fmt.Sprintf("%s (%s ago)", formatTime(e.Time), term.FormatAgo(e.Time)))
	line("reason", e.Reason)
	fmt.Fprintf(&b, "\n%s\n", p.Bold(fmt.Sprintf("content: %d bytes", e.Size)))
	writeJSON(&b, e.Data)
	_, err := std.Out.Write([]byte(b.String()))
	return err
}

func newQuarantineReplay(std term.Streams) *cobra.Command {
	var f adminFlags
	var file string
	cmd := &cobra.Command{
		Use:   "replay ID",
		Short: "Publish a rejected entry, unchanged or corrected",
		Long: `Moves an entry of the quarantine to the inbox, from which the relay publishes it. The relay checks the content
first. Nothing changes if it is still invalid, or if an event with the idempotency key of the entry was published in its
hub. Without --data the content is unchanged. This helps after a change of notifications.extra_topics and a restart of
all nodes. An entry of a source requires --data.`,
		Example: `  hubrelay quarantine show 1732153000123-0 --json | jq -r .data > event.json
  hubrelay quarantine replay 1732153000123-0 --data event.json`,
		Args: command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			data := ""
			if cmd.Flags().Changed("data") {
				var err error
				if data, err = readCorrected(std, file); err != nil {
					return err
				}
			}
			return callAndPrint(cmd.Context(), std, &f, adminapi.ReplayQuarantined(),
				adminapi.ReplayQuarantinedRequest{Data: data},
				func(e adminapi.ReplayedEntry) error {
					_, err := fmt.Fprintln(std.Out, term.Sanitize(fmt.Sprintf("moved %s to the inbox: %s of hub %s", e.ID, e.Topic, e.HubID)))
					return err
				}, args...)
		},
	}
	cmd.Flags().StringVar(&file, "data", "", "file with the corrected content, or - for standard input")
	f.register(cmd, std)
	return cmd
}

// readCorrected reads corrected content, up to the size of an event.
func readCorrected(std term.Streams, name string) (string, error) {
	data, err := command.ReadFile(std, name, maxCorrected)
	switch {
	case err != nil:
		return "", fmt.Errorf("read the corrected content: %w", err)
	case len(bytes.TrimSpace(data)) == 0:
		return "", errors.New("the corrected content is empty")
	case !utf8.Valid(data):
		return "", errors.New("the corrected content is not UTF-8")
	}
	return string(data), nil
}

type quarantineDropFlags struct {
	adminFlags
	all, yes bool
}

func newQuarantineDrop(std term.Streams) *cobra.Command {
	var f quarantineDropFlags
	cmd := &cobra.Command{
		Use:   "drop [ID... | --all]",
		Short: "Drop rejected entries",
		Long: `Removes entries of the quarantine permanently. With --all it asks for confirmation on a terminal, and requires
--yes otherwise.`,
		Example: "  hubrelay quarantine drop 1732153000123-0\n  hubrelay quarantine drop --all",
		Args:    command.WithUsageErrors(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.all && len(args) > 0:
				return command.NewUsageError(cmd, errors.New("specify either IDs or --all, not both"))
			case !f.all && len(args) == 0:
				return command.NewUsageError(cmd, errors.New("nothing selected: specify IDs or --all"))
			case f.all && !f.yes && !canConfirm(std):
				return command.NewUsageError(cmd, errors.New("confirmation requires a terminal: use --yes to drop all"))
			}
			return dropQuarantined(cmd.Context(), std, &f, args)
		},
	}
	f.register(cmd, std)
	cmd.Flags().BoolVar(&f.all, "all", false, "all entries of the quarantine")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

// dropQuarantined lists all entries first, so it drops exactly the ones that the user confirmed.
func dropQuarantined(ctx context.Context, std term.Streams, f *quarantineDropFlags, ids []string) error {
	c, err := f.connect(std)
	if err != nil {
		return err
	}
	if f.all {
		err := forEachPage(ctx, c, adminapi.ListQuarantine(), newPageRequest, func(page []adminapi.QuarantinedEntry) error {
			for _, e := range page {
				ids = append(ids, e.ID)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if !f.yes && len(ids) > 0 {
			question := fmt.Sprintf("drop %s of the quarantine permanently?", term.Pluralize(len(ids), "entry"))
			if err := confirmChange(ctx, std, question); err != nil {
				return err
			}
		}
	}
	total := adminapi.NewChangeResult(0)
	for part := range slices.Chunk(ids, changeBatch) {
		var result adminapi.ChangeResult
		if result, err = callRelay(ctx, c, adminapi.DropQuarantined(), adminapi.DropQuarantinedRequest{IDs: part}); err != nil {
			break
		}
		total.Add(result)
	}
	err = printChange(std, &f.Output, &total, len(ids), "dropped", err, func() error {
		_, err := fmt.Fprintln(std.Out, "dropped "+term.Pluralize(total.Changed, "entry"))
		return err
	})
	if err == nil && len(total.Unchanged) > 0 && !f.all {
		return fmt.Errorf("not in the quarantine: %d of %d IDs; 'hubrelay quarantine list' shows all entries",
			len(total.Unchanged), len(ids))
	}
	return err
}

package admincli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// deadLetterFlags select dead letters of a sink.
type deadLetterFlags adminapi.DeadLetterFilter

func (f *deadLetterFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.Topics, "topic", nil, "only these topics, a pattern such as '*.error'; may be repeated")
	flags.StringVar(&f.HubID, "hub", "", "only this hub")
	flags.StringVar(&f.Since, "since", "", "only deliveries that became dead letters within an age such as 2h, or since a time (RFC 3339)")
}

func (f *deadLetterFlags) isSet() bool { return len(f.Topics) > 0 || f.HubID != "" || f.Since != "" }

// toFilter returns the filter. An age in Since becomes a time, so it does not change between requests.
func (f *deadLetterFlags) toFilter(cmd *cobra.Command) (adminapi.DeadLetterFilter, error) {
	filter := adminapi.DeadLetterFilter(*f)
	err := command.FixTimeFlag(cmd, "since", &filter.Since)
	return filter, err
}

func newDeadLetters(std term.Streams) *cobra.Command {
	cmd := command.NewGroup("deadletters", "Show, replay and drop dead letters",
		newLettersList(std), newLettersShow(std),
		newLettersChange(std, deadLetterAction{
			operation: adminapi.ReplayDeadLetters(), verb: "replay", pastTense: "replayed", short: "Deliver dead letters again",
			long: "Delivers dead letters again, with the same IDs and a new retry schedule.",
		}),
		newLettersChange(std, deadLetterAction{
			operation: adminapi.DropDeadLetters(), verb: "drop", pastTense: "dropped", short: "Drop dead letters", confirm: true,
			long: "Removes dead letters permanently. With --all it asks for confirmation on a terminal, and " +
				"requires --yes otherwise.",
		}),
	)
	cmd.Long = `A dead letter is a delivery that the destination rejected permanently, or that has no attempts left or reached
retry.max_age. Its ID is the ID of the delivery. It is kept until you replay or drop it. If a sink has more than its backlog
allows, or Redis is nearly full, the oldest are dropped.

` + adminHelp
	return cmd
}

func newLettersList(std term.Streams) *cobra.Command {
	var f adminFlags
	var selection deadLetterFlags
	cmd := &cobra.Command{
		Use:   "list SINK",
		Short: "List the dead letters of a sink, oldest first",
		Long: `Lists the dead letters of a sink, oldest first. LAST ATTEMPT is the time since the last attempt, ATTEMPTS the
number of attempts. 'deadletters show' prints all details of one. On a terminal, long values are truncated and columns are
omitted.`,
		Example: `  hubrelay deadletters list billing
  hubrelay deadletters list billing --topic '*.error' --since 2h --json`,
		Args: command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := selection.toFilter(cmd)
			if err != nil {
				return err
			}
			return listLetters(cmd.Context(), std, &f, args[0], filter)
		},
	}
	selection.register(cmd)
	f.register(cmd, std)
	return cmd
}

func listLetters(
	ctx context.Context, std term.Streams, f *adminFlags, sink string, filter adminapi.DeadLetterFilter,
) error {
	c, err := f.connect(std)
	if err != nil {
		return err
	}
	empty := "no dead letters"
	if len(filter.Topics) > 0 || filter.HubID != "" || filter.Since != "" {
		empty += " match"
	}
	return printPages(std, &f.Output, func(visit func([]adminapi.DeadLetter) error) error {
		return forEachDeadLetter(ctx, c, sink, filter, visit)
	}, func(page []adminapi.DeadLetter) error { return printLetters(std, page) }, empty)
}

// forEachDeadLetter calls visit with each page of the selected dead letters.
func forEachDeadLetter(
	ctx context.Context, c *adminConn, sink string, filter adminapi.DeadLetterFilter,
	visit func([]adminapi.DeadLetter) error,
) error {
	return forEachPage(ctx, c, adminapi.ListDeadLetters(), func(p adminapi.PageRequest) adminapi.ListDeadLettersRequest {
		return adminapi.ListDeadLettersRequest{DeadLetterFilter: filter, PageRequest: p}
	}, visit, sink)
}

func printLetters(std term.Streams, list []adminapi.DeadLetter) error {
	paint := term.NewPalette(std.Out, std.Env)
	rows := make([][]string, len(list))
	for i, l := range list {
		rows[i] = []string{
			term.Sanitize(l.ID), term.FormatAgo(l.LastAttemptAt), term.Sanitize(l.Topic), term.Sanitize(l.HubID),
			strconv.Itoa(l.Attempts), term.Sanitize(l.Reason), shortError(l.Error),
		}
	}
	return term.PrintTableWithin(std.Out, paint, term.Width(std.Out), []term.Column{
		{Title: "ID"},
		{Title: "LAST ATTEMPT", Right: true},
		{Title: "TOPIC", MaxWidth: 24, Paint: topicPainter(paint)},
		{Title: "HUB", MaxWidth: 12, DropOrder: 2},
		{Title: "ATTEMPTS", Right: true, DropOrder: 1},
		{Title: "REASON", DropOrder: 3},
		{Title: "ERROR", MinWidth: 32},
	}, rows)
}

// topicPainter returns the Paint function of a column with topics.
func topicPainter(paint term.Palette) func(cell, padded string) string {
	return func(cell, padded string) string { return strings.Replace(paint.Topic(cell), cell, padded, 1) }
}

// shortError omits the destination and the operation, which are the same for all deliveries of a sink.
func shortError(text string) string {
	text = strings.TrimPrefix(text, "render the ") // template: line 3: …
	if before, rest, ok := strings.Cut(text, "post to "); ok {
		if _, why, found := strings.Cut(rest, ": "); found {
			text = before + why
		}
	}
	return term.Sanitize(text)
}

func newLettersShow(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "show SINK ID",
		Short: "Show a dead letter with its events and attempts",
		Long: `Shows a delivery that will not be retried: why, its attempts with the responses of the destination, and its events.
ID is in the first column of 'hubrelay deadletters list SINK'. 'deadletters replay' delivers it again.`,
		Example: "  hubrelay deadletters show billing 019aa0c2f4e17b3c00000001",
		Args:    command.ExactNamedArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callAndPrint(cmd.Context(), std, &f, adminapi.ShowDeadLetter(), adminapi.Empty{},
				func(l adminapi.DeadLetterDetails) error { return showDeadLetter(std, args[0], l) }, args...)
		},
	}
	f.register(cmd, std)
	return cmd
}

func showDeadLetter(std term.Streams, sink string, l adminapi.DeadLetterDetails) error {
	p := term.NewPalette(std.Out, std.Env)
	var b strings.Builder
	line := fieldWriter(&b, p, 13)
	line("id", l.ID)
	line("sink", sink)
	line("topic", l.Topic)
	line("hub", l.HubID)
	line("account", l.AccountID)
	if d := l.Digest; d != nil {
		line("digest", fmt.Sprintf("of %d, the first %s, the last %s; lists %d", d.Count, formatTime(d.First), formatTime(d.Last),
			len(l.Events)))
		line("by", commonText(d.Shared))
		line("topics", topicsText(d.Topics))
	}
	if l.Batch {
		line("batch", fmt.Sprintf("of %d; the topic is the topic of the first", len(l.Events)))
	}
	line("last attempt", fmt.Sprintf("%s (%s ago)", formatTime(l.LastAttemptAt), term.FormatAgo(l.LastAttemptAt)))
	line("reason", l.Reason)
	line("error", l.Error)
	fmt.Fprintf(&b, "\n%s\n", p.Bold(fmt.Sprintf("attempts: %d", len(l.Attempts))))
	for i, a := range l.Attempts {
		writeAttempt(&b, i+1, &a, a.Error)
		for text := range strings.Lines(a.Response) {
			fmt.Fprintf(&b, "     %s %s\n", p.Dim("|"), term.Sanitize(strings.TrimRight(text, "\r\n")))
		}
	}
	for i, n := range l.Events {
		title := "event"
		if len(l.Events) > 1 {
			title = fmt.Sprintf("event %d of %d", i+1, len(l.Events))
		}
		fmt.Fprintf(&b, "\n%s\n", p.Bold(title))
		writeJSON(&b, string(n))
	}
	if l.Raw != "" {
		fmt.Fprintf(&b, "\n%s\n%s\n", p.Bold("stored text, not an event"), term.Sanitize(l.Raw))
	}
	_, err := std.Out.Write([]byte(b.String()))
	return err
}

// fieldWriter returns a function that writes a name of up to width characters and a value, unless the value is empty.
func fieldWriter(b *strings.Builder, p term.Palette, width int) func(name, value string) {
	return func(name, value string) {
		if value != "" {
			fmt.Fprintf(b, "%s %s\n", p.Bold(fmt.Sprintf("%-*s", width, name)), term.Sanitize(value))
		}
	}
}

// maxIndented is the maximum size of JSON that is printed with line breaks. Indentation of deeply nested JSON takes much more
// memory than its text.
const maxIndented = 64 << 10

// writeJSON writes an untrusted text: with line breaks if it is JSON of a usual size, and otherwise as it is.
func writeJSON(b *strings.Builder, text string) {
	var pretty bytes.Buffer
	if len(text) <= maxIndented && json.Indent(&pretty, []byte(text), "", "  ") == nil {
		text = pretty.String()
	}
	writeLines(b, text)
}

// writeLines writes the lines of an untrusted text.
func writeLines(b *strings.Builder, text string) {
	for line := range strings.Lines(text) {
		b.WriteString(term.Sanitize(strings.TrimRight(line, "\r\n")) + "\n")
	}
}

// commonText returns the values that all notifications of a digest share.
func commonText(by map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, name+" "+by[name])
	}
	return strings.Join(parts, ", ")
}

// topicsText returns the topics of a digest with their counts, the most frequent first.
func topicsText(topics map[string]int) string {
	names := slices.Sorted(maps.Keys(topics))
	slices.SortStableFunc(names, func(a, b string) int { return topics[b] - topics[a] })
	for i, name := range names {
		names[i] = fmt.Sprintf("%d × %s", topics[name], name)
	}
	return strings.Join(names, ", ")
}

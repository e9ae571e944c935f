package admincli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
)

func newSinks(std term.Streams, explain *cobra.Command) *cobra.Command {
	cmd := command.NewGroup("sinks", "Show and control the sinks of a running relay",
		newSinksList(std), newSinksShow(std), newSinksTest(std), explain,
		newSinksSwitch(std, adminapi.PauseSink(), "pause", "Stop deliveries to a sink and keep its backlog",
			"Stops deliveries to the sink on all nodes within about a second. The backlog is kept up to its limit, "+
				"even after restarts."),
		newSinksSwitch(std, adminapi.ResumeSink(), "resume", "Resume a sink that is paused, disabled, down or throttled",
			`Continues with the waiting and retrying deliveries of a sink that was paused, or that the relay disabled because its
destination requested it or failed for days. If the sink is down, the next probe of its destination may start immediately. A
successful 'sinks test' has the same effect on a sink that is down. If the sink is throttled, the pause that its
destination asked for ends. Failed deliveries keep the time of their next attempt; 'sinks retry' attempts them now.`),
		newSinksRetry(std), newSinksReplay(std), newSinksForget(std),
	)
	cmd.Long = `Shows and controls the sinks of a running relay. 'sinks explain' needs no running relay.

` + adminHelp
	return cmd
}

func newSinksList(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List sinks with their state and stats",
		Long: `Lists the sinks of a running relay.

STATE is active; paused by an operator; disabled by the relay; down, if the destination has failed many times in a row and
this node makes single attempts as probes; throttled while the destination asks to wait; failed, if the sink
cannot deliver on this node; or removed, if it is not in the configuration of this node.

WAITING is the number of events in the queue and in open digests. A plus sign after it means that further events wait in the
log, because the queue was full or the sink was absent. RETRYING counts deliveries that failed, were replayed or postponed,
or wait for another delivery with the same ordering key. DEAD counts dead letters. OLDEST is the age of the oldest delivery
that is neither delivered nor dead; an open digest counts from the time when it should have been sent. LAST SUCCESS is the
time since the last success. DELIVERED and FAILURES count all attempts on all nodes, with replays; one attempt may contain
many events. They are approximate, because a node that is killed loses the counts of its last second.

'hubrelay sinks show NAME' and --json show more, such as the topics, and failures by reason. Notes after the table show
problems. They show the last failure of a sink if its last attempt failed, or if it has scheduled retries.`,
		Example: `  hubrelay sinks list
  hubrelay sinks list --json | jq 'select(.dead > 0) | .name'`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return callAndPrintList(cmd.Context(), std, &f, adminapi.ListSinks(),
				func(list []adminapi.Sink) error { return printSinkList(std, list) }, "no sinks: add some to sinks: in the configuration of the relay")
		},
	}
	f.register(cmd, std)
	return cmd
}

func printSinkList(std term.Streams, list []adminapi.Sink) error {
	var rows [][]string
	notes := ""
	for i := range list {
		s := &list[i]
		rows = append(rows, sinkRow(s))
		for _, note := range sinkNotes(s) {
			notes += "\n" + term.Sanitize(note)
		}
		if text := lastSinkFailure(s); text != "" {
			notes += "\n" + term.TruncateToWidth(term.Sanitize(text), term.Width(std.Out))
		}
	}
	if err := printSinks(std, rows); err != nil || notes == "" {
		return err
	}
	_, err := fmt.Fprintln(std.Out, notes)
	return err
}

func sinkRow(s *adminapi.Sink) []string {
	return []string{
		term.Sanitize(s.Name), orDash(s.Type), term.Sanitize(string(s.State)), waitingCount(s),
		term.FormatCount(s.Retrying), term.FormatCount(s.Dead), term.FormatAgo(s.OldestAt),
		term.FormatAgo(s.LastSuccessAt), term.FormatCount(s.Delivered), term.FormatCount(failureCount(s)),
	}
}

// waitingCount returns the number of waiting events. A plus sign means that further ones wait in the log.
func waitingCount(s *adminapi.Sink) string {
	if s.CatchingUp {
		return term.FormatCount(s.Waiting) + "+"
	}
	return term.FormatCount(s.Waiting)
}

func failureCount(s *adminapi.Sink) (all int64) {
	for _, n := range s.FailedAttempts {
		all += n
	}
	return all
}

// failureSummary returns the reasons of failed attempts, the most frequent first.
func failureSummary(s *adminapi.Sink) string {
	reasons := slices.SortedFunc(maps.Keys(s.FailedAttempts), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.FailedAttempts[b], s.FailedAttempts[a]), cmp.Compare(a, b))
	})
	for i, reason := range reasons {
		reasons[i] = fmt.Sprintf("%s %s", reason, term.FormatCount(s.FailedAttempts[reason]))
	}
	return strings.Join(reasons, ", ")
}

// sinkNotes returns problems that do not fit into the table.
func sinkNotes(s *adminapi.Sink) (list []string) {
	if note := sinkProblem(s); note != "" {
		list = append(list, s.Name+": "+note)
	}
	if len(s.MissingOn) > 0 {
		list = append(list, fmt.Sprintf("%s: not configured on %s, so it may get no new events; give all nodes the same configuration",
			s.Name, relay.Truncate(strings.Join(s.MissingOn, ", "), maxNamesLength)))
	}
	if len(s.FailedOn) > 0 {
		list = append(list, fmt.Sprintf("%s: failed on %s; see the log there", s.Name,
			relay.Truncate(strings.Join(s.FailedOn, ", "), maxNamesLength)))
	}
	if n := len(s.FailingAccounts); n > 0 {
		list = append(list, fmt.Sprintf("%s: the destination fails for %s (%s), whose deliveries are postponed", s.Name,
			term.Pluralize(n, "account"), relay.Truncate(strings.Join(s.FailingAccounts, ", "), maxNamesLength)))
	}
	if s.Dropped > 0 {
		list = append(list, fmt.Sprintf("%s: %s dropped so far because the backlog or Redis was full; fix the "+
			"destination, raise backlog, or give Redis more memory, then replay them with 'hubrelay sinks replay %[1]s --since TIME'",
			s.Name, term.FormatCount(s.Dropped)))
	}
	return list
}

// maxNamesLength is the maximum length of a list of nodes or accounts in a note, in bytes.
const maxNamesLength = 100

func sinkProblem(s *adminapi.Sink) string {
	switch {
	case !s.Configured:
		return "not configured on this node; " + nextStep(s)
	case s.State == adminapi.SinkActive && s.Reason != "":
		return fmt.Sprintf("%s; 'hubrelay sinks retry %s' starts the retries now", s.Reason, s.Name)
	case s.State == adminapi.SinkActive && s.Retrying > 0 && len(s.FailedAttempts) > 0:
		return "failed attempts: " + failureSummary(s)
	case s.State == adminapi.SinkActive:
		return ""
	case s.State == adminapi.SinkDisabled:
		return "disabled: " + shortError(s.Reason) + "; " + nextStep(s)
	case s.State == adminapi.SinkDown:
		return s.Reason + ", next attempt " + nextProbeText(s, time.Now()) + "; " + nextStep(s)
	case s.State == adminapi.SinkThrottled:
		return s.Reason + ", until " + formatTime(s.NextAttemptAt) + "; " + nextStep(s)
	}
	return s.Reason
}

// nextProbeText describes when the next probe of a sink that is down starts. A probe is an attempt of a delivery that is due.
func nextProbeText(s *adminapi.Sink, now time.Time) string {
	if s.NextAttemptAt.After(now) {
		return "at " + formatTime(s.NextAttemptAt)
	}
	return "when a delivery is due"
}

// nextStep returns what an operator can do about the state of a sink, or "".
func nextStep(s *adminapi.Sink) string {
	switch {
	case !s.Configured:
		return "'hubrelay sinks forget' deletes its data if no node has it"
	case s.State == adminapi.SinkDisabled:
		return "fix the destination, then 'hubrelay sinks resume' enables it"
	case s.State == adminapi.SinkDown:
		return "'hubrelay sinks retry' starts an attempt now"
	case s.State == adminapi.SinkThrottled:
		return "'hubrelay sinks resume' ends the pause"
	}
	return ""
}

// lastSinkFailure describes the last failure if it may still be relevant.
func lastSinkFailure(s *adminapi.Sink) string {
	if s.LastErrorAt.IsZero() || s.LastError == "" || !s.Configured || s.State == adminapi.SinkDisabled ||
		s.LastSuccessAt.After(s.LastErrorAt) && s.Retrying == 0 {
		return ""
	}
	return fmt.Sprintf("%s: the last attempt failed %s ago: %s", s.Name, term.FormatAgo(s.LastErrorAt), shortError(s.LastError))
}

func printSinks(std term.Streams, rows [][]string) error {
	paint := term.NewPalette(std.Out, std.Env)
	state := func(cell, padded string) string {
		switch cell {
		case "active":
			return paint.Green(padded)
		case "paused", "throttled", "removed":
			return paint.Yellow(padded)
		}
		return paint.Red(padded)
	}
	columns := []term.Column{
		{Title: "NAME", MaxWidth: 20},
		{Title: "TYPE", MaxWidth: 8, DropOrder: 1}, // only with long names
		{Title: "STATE", MaxWidth: 9, Paint: state},
		{Title: "WAITING", Right: true},
		{Title: "RETRYING", Right: true},
		{Title: "DEAD", Right: true},
		{Title: "OLDEST", Right: true},
		{Title: "LAST SUCCESS", Right: true},
		{Title: "DELIVERED", Right: true},
		{Title: "FAILURES", Right: true},
	}
	return term.PrintTable(std.Out, paint, columns, rows)
}

// newRow returns the cells of a row.
func newRow(cells ...string) []string {
	for i := range cells {
		cells[i] = orDash(cells[i])
	}
	return cells
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return term.Sanitize(text)
}

// newSinksSwitch returns the command pause or resume.
func newSinksSwitch(
	std term.Streams, op adminapi.Operation[adminapi.Empty, adminapi.Sink], verb, short, long string,
) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use: verb + " NAME", Short: short, Long: long,
		Example: "  hubrelay sinks " + verb + " billing",
		Args:    command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callAndPrint(cmd.Context(), std, &f, op, adminapi.Empty{}, func(s adminapi.Sink) error {
				_, err := fmt.Fprintln(std.Out, term.Sanitize(fmt.Sprintf("%s is %s (waiting: %d, retrying: %d)",
					s.Name, s.State, s.Waiting, s.Retrying)))
				return err
			}, args[0])
		},
	}
	f.register(cmd, std)
	return cmd
}

func newSinksForget(std term.Streams) *cobra.Command {
	var f adminFlags
	var deadLetters bool
	cmd := &cobra.Command{
		Use:   "forget NAME",
		Short: "Delete the data of a removed sink",
		Long: `Deletes the queue, the scheduled retries, the state and the position of a sink that was removed from
the configuration. Its dead letters are kept unless --dead-letters is given.`,
		Example: "  hubrelay sinks forget old-billing --dead-letters",
		Args:    command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := adminapi.ForgetRequest{DeadLetters: deadLetters}
			return callAndPrint(cmd.Context(), std, &f, adminapi.ForgetSink(), request, func(adminapi.ForgetResult) error {
				text := "was deleted; its dead letters were kept (--dead-letters deletes them too)"
				if deadLetters {
					text = "was deleted with its dead letters"
				}
				_, err := fmt.Fprintln(std.Out, term.Sanitize(args[0]), text)
				return err
			}, args[0])
		},
	}
	cmd.Flags().BoolVar(&deadLetters, "dead-letters", false, "delete its dead letters too")
	f.register(cmd, std)
	return cmd
}

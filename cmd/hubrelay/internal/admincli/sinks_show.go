package admincli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

func newSinksShow(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show the state of a sink, its last error and its last changes",
		Long: `Shows the state and stats of a sink, its last error, and the last changes of its state with their actors. Operators
pause and resume a sink on all nodes, and the relay disables it. The states down, throttled and failed belong to a node,
which checks them every five seconds.`,
		Example: "  hubrelay sinks show billing",
		Args:    command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callAndPrint(cmd.Context(), std, &f, adminapi.ShowSink(), adminapi.Empty{},
				func(s adminapi.Sink) error { return showSink(std, &s) }, args...)
		},
	}
	f.register(cmd, std)
	return cmd
}

func showSink(std term.Streams, s *adminapi.Sink) error {
	p := term.NewPalette(std.Out, std.Env)
	var b strings.Builder
	line := fieldWriter(&b, p, 12)
	state := string(s.State)
	if !s.Configured {
		state = "removed"
	}
	if s.Reason != "" {
		state += ": " + s.Reason
	}
	line("name", s.Name)
	line("type", s.Type)
	line("state", state)
	if !s.StateChangedAt.IsZero() {
		line("since", fmt.Sprintf("%s (%s ago)", formatTime(s.StateChangedAt), term.FormatAgo(s.StateChangedAt)))
	}
	switch now := time.Now(); {
	case s.NextAttemptAt.IsZero():
	case s.State == adminapi.SinkDown:
		line("next attempt", nextProbeText(s, now))
	default:
		line("next attempt", nextText(s.NextAttemptAt, now))
	}
	line("next step", nextStep(s))
	line("topics", strings.Join(s.Topics, ", "))
	waiting := term.FormatCount(s.Waiting)
	if s.WaitingInDigests > 0 {
		waiting += fmt.Sprintf(", %s in open digests", term.FormatCount(s.WaitingInDigests))
	}
	if s.CatchingUp {
		waiting += ", and more in the log"
	}
	line("waiting", waiting)
	line("retrying", term.FormatCount(s.Retrying))
	dead := term.FormatCount(s.Dead)
	if s.Dead > 0 {
		dead += "; 'hubrelay deadletters list' shows them"
	}
	line("dead", dead)
	line("delivered", term.FormatCount(s.Delivered))
	line("failures", failureSummary(s))
	if s.Dropped > 0 {
		line("dropped", term.FormatCount(s.Dropped))
	}
	if !s.OldestAt.IsZero() {
		line("oldest", fmt.Sprintf("%s (%s ago)", formatTime(s.OldestAt), term.FormatAgo(s.OldestAt)))
	}
	if !s.LastSuccessAt.IsZero() {
		line("last success", fmt.Sprintf("%s (%s ago)", formatTime(s.LastSuccessAt), term.FormatAgo(s.LastSuccessAt)))
	}
	var nodes []string
	if len(s.MissingOn) > 0 {
		nodes = append(nodes, "not configured on "+strings.Join(s.MissingOn, ", "))
	}
	if len(s.FailedOn) > 0 {
		nodes = append(nodes, "failed on "+strings.Join(s.FailedOn, ", "))
	}
	line("nodes", strings.Join(nodes, "; "))
	if len(s.FailingAccounts) > 0 {
		line("failing accounts", strings.Join(s.FailingAccounts, ", "))
	}
	if s.LastError != "" {
		line("last error", fmt.Sprintf("%s (%s ago): %s", formatTime(s.LastErrorAt), term.FormatAgo(s.LastErrorAt), s.LastError))
	}
	if len(s.Changes) > 0 {
		fmt.Fprintf(&b, "\n%s\n", p.Bold("last changes"))
	}
	for _, c := range s.Changes {
		text := fmt.Sprintf("  %s  %-9s  %s", formatTime(c.Time), c.State, c.Actor)
		if c.Node != "" {
			text += " on " + c.Node
		}
		if c.Reason != "" {
			text += ": " + c.Reason
		}
		b.WriteString(term.Sanitize(text) + "\n")
	}
	_, err := std.Out.Write([]byte(b.String()))
	return err
}

package admincli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

func newEventsShow(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show an event and its deliveries",
		Long: `Shows who published an event, its payload, how many clients of streams received it on each node, and for each
sink that was configured at that time: the state of its delivery, why it did not get the event, the next attempt, and all
attempts.

Attempts are numbered from 1 for each delivery, so a replay starts again with 1. history in the configuration limits how
long attempts are kept. The payload requires the role operator.`,
		Example: "  hubrelay events show 019aa0c2f4e17b3c00000001\n  hubrelay events show 019aa0c2f4e17b3c00000001 -o json | jq .sinks",
		Args:    command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callAndPrint(cmd.Context(), std, &f, adminapi.ShowEvent(), adminapi.Empty{},
				func(e adminapi.EventDetails) error { return showEvent(std, &e) }, args...)
		},
	}
	f.register(cmd, std)
	return cmd
}

func showEvent(std term.Streams, e *adminapi.EventDetails) error {
	p := term.NewPalette(std.Out, std.Env)
	var b strings.Builder
	line := fieldWriter(&b, p, 9)
	line("id", e.ID)
	line("topic", e.Topic)
	line("stored", fmt.Sprintf("%s (%s ago)", e.Time.UTC().Format(timeWithMilliseconds), term.FormatAgo(e.Time)))
	line("hub", e.HubID)
	line("account", e.AccountID)
	line("object", e.ObjectID)
	line("publisher", publisherText(e.Publisher))
	line("clients", clientsText(e.Streams))
	for i := range e.Sinks {
		writeEventSink(&b, p, &e.Sinks[i])
	}
	if len(e.Sinks) == 0 {
		b.WriteString("\nno sink was configured\n")
	}
	if e.Incomplete {
		b.WriteString("\nthe history was too large to be read in time: attempts may be missing\n")
	}
	if len(e.Payload) > 0 && string(e.Payload) != "null" {
		fmt.Fprintf(&b, "\n%s\n", p.Bold("payload"))
		writeJSON(&b, string(e.Payload))
	}
	_, err := std.Out.Write([]byte(b.String()))
	return err
}

const (
	timeWithMilliseconds = "2006-01-02T15:04:05.000Z07:00"
	// maxAttemptLines is the number of attempts of a sink in the output. The JSON output has all of them.
	maxAttemptLines = 50
)

// clientsText returns the number of clients per node.
func clientsText(streams []adminapi.EventStream) string {
	if len(streams) == 0 {
		return "none"
	}
	var parts []string
	for _, s := range streams {
		text := fmt.Sprintf("%d on %s", s.Clients, s.Node)
		if len(s.Keys) > 0 {
			text += " (" + strings.Join(s.Keys, ", ") + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

func writeEventSink(b *strings.Builder, p term.Palette, s *adminapi.EventSink) {
	state := strings.ReplaceAll(string(s.State), "_", " ")
	fmt.Fprintf(b, "\n%s  %s", p.Bold(term.Sanitize(s.Sink)), paintState(p, s.State, state))
	if why := reasonText(s); why != "" {
		b.WriteString(": " + term.Sanitize(why))
	}
	switch next := s.NextAttemptAt; {
	case next == nil:
	case s.Reason == reasonDigest:
		b.WriteString(", sent " + nextText(*next, time.Now()))
	case s.Reason == string(adminapi.SinkPaused), s.Reason == string(adminapi.SinkDisabled):
		b.WriteString(", next attempt after the sink is resumed")
	default:
		b.WriteString(", next attempt " + nextText(*next, time.Now()))
	}
	b.WriteString("\n")
	attempts := s.Attempts
	if hidden := len(attempts) - maxAttemptLines; hidden > 0 {
		fmt.Fprintf(b, "  … %d earlier attempts\n", hidden)
		attempts = attempts[hidden:]
	}
	for _, a := range attempts {
		text := a.Node + "  " + a.Error
		if a.DeliveryID != "" {
			text += "  (in delivery " + a.DeliveryID + ")"
		}
		writeAttempt(b, a.Number, &adminapi.Attempt{Time: a.Time, Outcome: a.Outcome, Status: a.Status, DurationMS: a.DurationMS}, text)
	}
}

// writeAttempt writes the line of an attempt, which ends with text.
func writeAttempt(b *strings.Builder, number int, a *adminapi.Attempt, text string) {
	status := "-"
	if a.Status != 0 {
		status = strconv.Itoa(a.Status)
	}
	line := fmt.Sprintf("  %s  #%-3d %-9s  %3s  %8.1f ms  %s", a.Time.UTC().Format(timeWithMilliseconds), number, a.Outcome, status,
		a.DurationMS, text)
	b.WriteString(strings.TrimRight(term.Sanitize(line), " ") + "\n")
}

// paintState colors a text about a delivery by its state.
func paintState(p term.Palette, state adminapi.DeliveryState, text string) string {
	switch state {
	case adminapi.DeliveryDelivered:
		return p.Green(text)
	case adminapi.DeliveryDead, adminapi.DeliveryDropped:
		return p.Red(text)
	case adminapi.DeliveryWaiting, adminapi.DeliveryRetrying:
		return p.Yellow(text)
	case adminapi.DeliveryNotMatched, adminapi.DeliveryUnknown:
	}
	return p.Dim(text)
}

// reasonDigest is the reason of a delivery that waits in an open digest.
const reasonDigest = "digest"

// reasonText describes why a delivery has its state.
func reasonText(s *adminapi.EventSink) string {
	switch {
	case s.Reason == reasonDigest:
		return "in an open digest"
	case strings.HasPrefix(s.Reason, "when: "):
		return s.Reason
	case s.Reason == "ordering", s.Reason == "running":
		return s.Detail
	case s.State == adminapi.DeliveryWaiting, s.State == adminapi.DeliveryRetrying:
		if s.Reason != "" && s.Detail != "" {
			return "the sink is " + s.Reason + ": " + s.Detail
		}
		if s.Reason != "" {
			return "the sink is " + s.Reason
		}
	}
	return s.Detail
}

// nextText describes a time that is usually in the future.
func nextText(at, now time.Time) string {
	if wait := at.Sub(now); wait > 0 {
		return fmt.Sprintf("in %s (%s)", term.FormatAge(wait), formatTime(at))
	}
	return "now"
}

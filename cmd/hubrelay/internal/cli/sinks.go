package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

// sinkInfo is a sink in the admin API.
type sinkInfo struct {
	Name          string   `json:"name"`
	Type          string   `json:"type"`
	Configured    *bool    `json:"configured"`
	State         string   `json:"state"`
	Reason        string   `json:"reason"`
	Since         string   `json:"since"`
	DownUntil     string   `json:"down_until"`
	RestingUntil  string   `json:"resting_until"`
	Topics        string   `json:"topics"`
	Backlog       int64    `json:"backlog"`
	Gathering     int64    `json:"gathering"`
	Parked        int64    `json:"parked"`
	Dead          int64    `json:"dead"`
	OldestSeconds *float64 `json:"oldest_seconds"`
	LastSuccess   string   `json:"last_success"`
	LastError     string   `json:"last_error"`
	LastErrorAt   string   `json:"last_error_at"`
	InFlight      *int64   `json:"in_flight"`
	Delivered     *int64   `json:"delivered"`
	Dropped       int64    `json:"dropped"`

	Failed map[string]int64 `json:"failed"`
}

func newSinks(std term.Streams, build Build) *cobra.Command {
	cmd := commandGroup("sinks", "Show and control the sinks of a running daemon",
		newSinksList(std), newSinksTest(std), newSinksExplain(std, build),
		newSinksSwitch(std, "pause", "Stop deliveries to a sink and keep its backlog",
			"Stops deliveries to the sink on all nodes within about a second. The backlog is kept up to its limit, "+
				"even after restarts."),
		newSinksSwitch(std, "resume", "Resume a paused or disabled sink",
			`Continues with the backlog of a sink that was paused, or that the relay disabled because its receiver
requested it or failed for days. If the sink is down, the next probe of its destination may start immediately; 'sinks
test' has the same effect.`),
		newSinksRetry(std), newSinksReplay(std), newSinksForget(std),
	)
	cmd.Long = `Shows and controls the sinks of a running daemon. 'sinks explain' needs no daemon.

` + adminHelp
	return cmd
}

func newSinksList(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List sinks with their state and statistics",
		Long: `Lists the sinks of a running daemon.

STATE is down if the destination has failed many times in a row and this node makes single attempts as probes. It is
resting during a pause that the destination requested.

WAITING is the number of deliveries without an attempt, including deliveries collected for a digest. RETRYING counts
deliveries that wait for another attempt or for an earlier delivery, or were replayed. DEAD counts dead letters. NOW is
the number of attempts in progress on this node. OLDEST is the age of the oldest delivery that is neither delivered nor
dead, LAST OK the time since the last success. SENT and FAILED count all attempts on all nodes, including replays. They
are approximate, because a node that is killed loses the counts of its last second.

Columns are omitted if the table is wider than 100 columns; --json has all values, and failures by reason. Notes after
the table show problems, and the last failure of sinks whose last attempt failed or that have scheduled retries.`,
		Example: `  hubrelay sinks list
  hubrelay sinks list --json | jq 'select(.dead > 0) | .name'`,
		Args: WithUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return listSinks(cmd.Context(), std, &f) },
	}
	f.register(cmd, std)
	return cmd
}

func listSinks(ctx context.Context, std term.Streams, f *adminFlags) error {
	client, err := f.newClient(std)
	if err != nil {
		return err
	}
	var answer struct{ Data []json.RawMessage }
	if err := client.get(ctx, "/api/sinks", nil, &answer); err != nil {
		return err
	}
	if f.asJSON {
		return printRaw(std, answer.Data...)
	}
	if len(answer.Data) == 0 {
		_, err := fmt.Fprintln(std.Out, "no sinks: add some to sinks: in the configuration of the daemon")
		return err
	}
	var rows [][]string
	notes := ""
	for _, raw := range answer.Data {
		var s sinkInfo
		if err := decodeData(raw, &s); err != nil {
			return err
		}
		rows = append(rows, s.tableRow())
		for _, note := range s.noteLines() {
			notes += "\n" + term.Sanitize(note)
		}
		if text := s.lastFailure(); text != "" {
			notes += "\n" + term.TruncateToWidth(term.Sanitize(text), term.Width(std.Out))
		}
	}
	if err := printSinks(std, rows); err != nil || notes == "" {
		return err
	}
	_, err = fmt.Fprintln(std.Out, notes)
	return err
}

func (s *sinkInfo) tableRow() []string {
	oldest := "-"
	if s.OldestSeconds != nil && s.Backlog+s.Gathering+s.Parked > 0 {
		oldest = term.FormatAge(time.Duration(*s.OldestSeconds * float64(time.Second)))
	}
	topics := orDash(s.Topics)
	if s.Topics == "" && s.Configured != nil && *s.Configured {
		topics = "*"
	}
	sent, failed, now := "-", "-", "-"
	if s.Delivered != nil {
		sent, failed = term.FormatCount(*s.Delivered), term.FormatCount(s.failureCount())
	}
	if s.InFlight != nil {
		now = term.FormatCount(*s.InFlight)
	}
	state := s.State
	if s.isRemoved() {
		state = "removed"
	}
	return []string{
		term.Sanitize(s.Name), orDash(s.Type), term.Sanitize(state), term.FormatCount(s.Backlog +
			s.Gathering), term.FormatCount(s.Parked), term.FormatCount(s.Dead),
		now, oldest, term.FormatAgo(s.LastSuccess), sent, failed, topics,
	}
}

// isRemoved reports whether the sink was removed from the configuration.
func (s *sinkInfo) isRemoved() bool { return s.Configured != nil && !*s.Configured }

func (s *sinkInfo) failureCount() (all int64) {
	for _, n := range s.Failed {
		all += n
	}
	return all
}

// failureSummary returns the reasons of failed attempts, the most frequent first.
func (s *sinkInfo) failureSummary() string {
	reasons := slices.SortedFunc(maps.Keys(s.Failed), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.Failed[b], s.Failed[a]), cmp.Compare(a, b))
	})
	for i, reason := range reasons {
		reasons[i] = fmt.Sprintf("%s %s", reason, term.FormatCount(s.Failed[reason]))
	}
	return strings.Join(reasons, ", ")
}

// noteLines returns problems that do not fit into the table.
func (s *sinkInfo) noteLines() (list []string) {
	if note := s.problemNote(); note != "" {
		list = append(list, note)
	}
	if s.Dropped > 0 {
		list = append(list, fmt.Sprintf("%s: %s dropped so far because the backlog was full; fix the receiver or "+
			"raise backlog", s.Name, term.FormatCount(s.Dropped)))
	}
	return list
}

func (s *sinkInfo) problemNote() string {
	switch {
	case s.isRemoved():
		return s.Name + ": removed from the configuration; 'hubrelay sinks forget' deletes its data"
	case s.State == "active" && s.Parked > 0 && len(s.Failed) > 0:
		return s.Name + ": failed attempts: " + s.failureSummary()
	case s.State == "active" || s.Reason == "":
		return ""
	case s.State == "disabled":
		return s.Name + ": " + s.Reason + "; 'hubrelay sinks resume' enables it"
	case s.State == "down":
		return s.Name + ": " + s.Reason + ", next attempt at " + s.DownUntil +
			"; 'hubrelay sinks resume' starts it now"
	case s.State == "resting":
		return s.Name + ": " + s.Reason + ", until " + s.RestingUntil
	}
	return s.Name + ": " + s.Reason
}

// lastFailure describes the last failure if it may still be relevant.
func (s *sinkInfo) lastFailure() string {
	// Both times are RFC 3339 with different numbers of digits, so strings cannot be compared.
	failed, err := time.Parse(time.RFC3339, s.LastErrorAt)
	if err != nil || s.LastError == "" || s.isRemoved() {
		return ""
	}
	if ok, err := time.Parse(time.RFC3339, s.LastSuccess); err == nil && ok.After(failed) && s.Parked == 0 {
		return ""
	}
	return fmt.Sprintf("%s: failed %s ago: %s", s.Name, term.FormatAgo(s.LastErrorAt), shortReason(s.LastError))
}

func printSinks(std term.Streams, rows [][]string) error {
	paint := term.NewPalette(std.Out, std.Env)
	state := func(cell, padded string) string {
		switch cell {
		case "active":
			return paint.Green(padded)
		case "paused", "resting", "removed":
			return paint.Yellow(padded)
		}
		return paint.Red(padded)
	}
	columns := []term.Column{
		{Title: "NAME", MaxWidth: 20},
		{Title: "TYPE", MaxWidth: 8, DropOrder: 2},
		{Title: "STATE", MaxWidth: 8, Paint: state},
		{Title: "WAITING", Right: true},
		{Title: "RETRYING", Right: true},
		{Title: "DEAD", Right: true},
		{Title: "NOW", Right: true, DropOrder: 1},
		{Title: "OLDEST", Right: true},
		{Title: "LAST OK", Right: true},
		{Title: "SENT", Right: true},
		{Title: "FAILED", Right: true},
		{Title: "TOPICS", DropOrder: 3},
	}
	// Omit columns without values.
	for i := len(columns) - 1; i >= 0; i-- {
		if !slices.ContainsFunc(rows, func(row []string) bool { return row[i] != "-" }) {
			columns, rows = term.RemoveColumn(columns, rows, i)
		}
	}
	return term.PrintTable(std.Out, paint, columns, rows)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return term.Sanitize(text)
}

// decodeData decodes the data of a response.
func decodeData(text json.RawMessage, into any) error {
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("decode response: %w; does the daemon have another version?", err)
	}
	return nil
}

// printRaw prints each JSON text unchanged on one line.
func printRaw(std term.Streams, texts ...json.RawMessage) error {
	var b bytes.Buffer
	for _, text := range texts {
		if err := json.Compact(&b, text); err != nil {
			return fmt.Errorf("decode response: %w", err)
		}
		b.WriteByte('\n')
	}
	_, err := std.Out.Write(b.Bytes())
	return err
}

// newSinksSwitch returns the command pause or resume.
func newSinksSwitch(std term.Streams, verb, short, long string) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use: verb + " NAME", Short: short, Long: long,
		Example: "  hubrelay sinks " + verb + " billing",
		Args:    exactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := f.newClient(std)
			if err != nil {
				return err
			}
			var answer struct{ Data json.RawMessage }
			if err := client.post(cmd.Context(), sinkPath(args[0], verb), nil, &answer); err != nil {
				return err
			}
			if f.asJSON {
				return printRaw(std, answer.Data)
			}
			var s sinkInfo
			if err := decodeData(answer.Data, &s); err != nil {
				return err
			}
			_, err = fmt.Fprintln(std.Out, term.Sanitize(fmt.Sprintf("%s is %s (backlog: %d, scheduled retries: %d)",
				s.Name, s.State, s.Backlog, s.Parked)))
			return err
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
		Long: `Deletes the backlog, the scheduled retries, the state and the position of a sink that was removed from
the configuration. Its dead letters are kept unless --dead-letters is given.`,
		Example: "  hubrelay sinks forget old-billing --dead-letters",
		Args:    exactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := f.newClient(std)
			if err != nil {
				return err
			}
			var answer struct{ Data json.RawMessage }
			if err := client.post(cmd.Context(), sinkPath(args[0], "forget"),
				map[string]bool{"dead_letters": deadLetters},
				&answer); err != nil {
				return err
			}
			if f.asJSON {
				return printRaw(std, answer.Data)
			}
			text := "was deleted; its dead letters were kept (--dead-letters deletes them too)"
			if deadLetters {
				text = "was deleted with its dead letters"
			}
			_, err = fmt.Fprintln(std.Out, term.Sanitize(args[0]), text)
			return err
		},
	}
	cmd.Flags().BoolVar(&deadLetters, "dead-letters", false, "delete its dead letters too")
	f.register(cmd, std)
	return cmd
}

package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/spf13/cobra"
)

// sinkInfo is what the admin API says of a sink.
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
	cmd := commandGroup("sinks", "See and steer the sinks of a running daemon",
		newSinksList(std), newSinksTest(std), newSinksExplain(std, build),
		newSinksSwitch(std, "pause", "Stop delivering to a sink, and keep what comes for it",
			"Stops deliveries to the sink on all nodes within about a second. Its backlog is kept, over restarts "+
				"too, up to its limit."),
		newSinksSwitch(std, "resume", "Deliver to a paused or disabled sink again",
			`Goes on with the backlog of a sink that was paused, or that the relay disabled because its receiver wished so or failed
for days. Where the sink is down, the next probe of its destination may begin at once; so it may after 'sinks test'.`),
		newSinksRetry(std), newSinksReplay(std), newSinksForget(std),
	)
	cmd.Long = `Shows the sinks of a running daemon and steers them. 'sinks explain' needs no
daemon.

` + adminHelp
	return cmd
}

func newSinksList(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the sinks with their state and figures",
		Long: `Lists the sinks of a running daemon.

STATE is down while the destination failed many times in a row and this node makes one attempt at a time as a probe, and
resting while the destination asked to be left alone.

WAITING have not been tried yet, those that a digest gathers included. RETRYING wait for another attempt, or for their
turn behind one, or were replayed. DEAD were given up and are dead letters. NOW is how many attempts this node is making.
OLDEST is how long the oldest delivery has waited that is neither delivered nor dead, LAST OK how long ago one was
delivered. SENT and FAILED count attempts on all nodes, since the sink exists, replays and repeats included; a node that is
killed takes what it counted in its last second along, so they are about right. Where the table would be wider than 100
columns some are left out; --json has everything, failures by reason too. Below it stands what is wrong: of a sink whose last
attempt failed, or that has deliveries to try again, what the last failure said.`,
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
		_, err := fmt.Fprintln(std.Out, "no sinks: give the daemon some under sinks: in its configuration")
		return err
	}
	var rows [][]string
	notes := ""
	for _, raw := range answer.Data {
		var s sinkInfo
		if err := readAnswer(raw, &s); err != nil {
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

// isRemoved tells whether the sink has left the configuration.
func (s *sinkInfo) isRemoved() bool { return s.Configured != nil && !*s.Configured }

func (s *sinkInfo) failureCount() (all int64) {
	for _, n := range s.Failed {
		all += n
	}
	return all
}

// failureSummary says why attempts failed, the most frequent reason first.
func (s *sinkInfo) failureSummary() string {
	reasons := slices.SortedFunc(maps.Keys(s.Failed), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.Failed[b], s.Failed[a]), cmp.Compare(a, b))
	})
	for i, reason := range reasons {
		reasons[i] = fmt.Sprintf("%s %s", reason, term.FormatCount(s.Failed[reason]))
	}
	return strings.Join(reasons, ", ")
}

// noteLines say what does not fit into the table; there are none for a sink that is as it should be.
func (s *sinkInfo) noteLines() (list []string) {
	if note := s.problemNote(); note != "" {
		list = append(list, note)
	}
	if s.Dropped > 0 {
		list = append(list, fmt.Sprintf("%s: %s dropped so far, the oldest of what its backlog has no room for; "+
			"mend the receiver, or raise backlog",
			s.Name, term.FormatCount(s.Dropped)))
	}
	return list
}

func (s *sinkInfo) problemNote() string {
	switch {
	case s.isRemoved():
		return s.Name + ": not in the configuration any more; 'hubrelay sinks forget' removes what is kept"
	case s.State == "active" && s.Parked > 0 && len(s.Failed) > 0:
		return s.Name + ": attempts failed so far: " + s.failureSummary()
	case s.State == "active" || s.Reason == "":
		return ""
	case s.State == "disabled":
		return s.Name + ": " + s.Reason + "; 'hubrelay sinks resume' enables it"
	case s.State == "down":
		return s.Name + ": " + s.Reason + ", the next from " + s.DownUntil +
			" on; 'hubrelay sinks resume' lets it begin at once"
	case s.State == "resting":
		return s.Name + ": " + s.Reason + ", until " + s.RestingUntil
	}
	return s.Name + ": " + s.Reason
}

// lastFailure says what the last failure was, where it may still matter.
func (s *sinkInfo) lastFailure() string {
	// Both times are RFC 3339, but have as many digits as they need.
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
	// What the daemon says of no sink is left out.
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

// readAnswer reads one thing that the daemon has answered.
func readAnswer(text json.RawMessage, into any) error {
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read the daemon's answer: %w; is it another version?", err)
	}
	return nil
}

// printRaw prints each JSON text on a line of its own, as it came.
func printRaw(std term.Streams, texts ...json.RawMessage) error {
	var b bytes.Buffer
	for _, text := range texts {
		if err := json.Compact(&b, text); err != nil {
			return fmt.Errorf("read the daemon's answer: %w", err)
		}
		b.WriteByte('\n')
	}
	_, err := std.Out.Write(b.Bytes())
	return err
}

// newSinksSwitch is pause or resume.
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
			if err := readAnswer(answer.Data, &s); err != nil {
				return err
			}
			_, err = fmt.Fprintln(std.Out, term.Sanitize(fmt.Sprintf("%s is %s, with %d in its backlog and %d parked",
				s.Name, s.State, s.Backlog, s.Parked)))
			return err
		},
	}
	f.register(cmd, std)
	return cmd
}

func newSinksReplay(std term.Streams) *cobra.Command {
	var f adminFlags
	var after string
	cmd := &cobra.Command{
		Use:   "replay NAME --after CURSOR|TIME",
		Short: "Deliver again what is still in the log",
		Long: `Delivers again, under the same ids, what the log still holds behind a cursor or since a time and what passes the
sink's filter. TIME is RFC 3339, or how long ago: 2h. How far the log reaches back is redis.retention.`,
		Example: `  hubrelay sinks replay billing --after 2h
  hubrelay sinks replay billing --after 2026-11-20T08:00:00Z`,
		Args: exactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if after == "" {
				return NewUsageError(cmd, errors.New("say from where: --after CURSOR or --after TIME"))
			}
			return replaySink(cmd.Context(), std, &f, args[0], after)
		},
	}
	cmd.Flags().StringVar(&after, "after", "", "cursor, RFC 3339 time, or how long ago (2h)")
	f.register(cmd, std)
	return cmd
}

func replaySink(ctx context.Context, std term.Streams, f *adminFlags, name, after string) error {
	if d, err := time.ParseDuration(after); err == nil && d > 0 {
		after = time.Now().Add(-d).UTC().Format(time.RFC3339Nano)
	}
	client, err := f.newClient(std)
	if err != nil {
		return err
	}
	var answer struct{ Data json.RawMessage }
	if err := client.post(ctx, sinkPath(name, "replay"), map[string]string{"after": after}, &answer); err != nil {
		if refused := (*apiError)(nil); errors.As(err, &refused) && refused.Code == "422.invalid-argument" {
			refused.Detail += ", nor how long ago such as 2h"
		}
		return err
	}
	if f.asJSON {
		return printRaw(std, answer.Data)
	}
	var result struct {
		Replayed, Waiting int64
		Complete          *bool
	}
	if err := readAnswer(answer.Data, &result); err != nil {
		return err
	}
	text := fmt.Sprintf("%s gets %s again", name, term.Pluralize(int(result.Replayed), "notification"))
	if result.Waiting > 0 {
		text += fmt.Sprintf("; %d more wait for their delivery anyway", result.Waiting)
	}
	if result.Complete != nil && !*result.Complete {
		text += "; the log may no longer reach back that far (redis.retention)"
	}
	_, err = fmt.Fprintln(std.Out, term.Sanitize(text))
	return err
}

func newSinksForget(std term.Streams) *cobra.Command {
	var f adminFlags
	var letters bool
	cmd := &cobra.Command{
		Use:   "forget NAME",
		Short: "Remove what is kept for a sink that left the configuration",
		Long: `Removes the backlog, the parked deliveries, the state and the position of a sink that is not in the configuration any
more. Its dead letters stay unless --dead-letters is given.`,
		Example: "  hubrelay sinks forget old-billing --dead-letters",
		Args:    exactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := f.newClient(std)
			if err != nil {
				return err
			}
			var answer struct{ Data json.RawMessage }
			if err := client.post(cmd.Context(), sinkPath(args[0], "forget"), map[string]bool{"dead_letters": letters},
				&answer); err != nil {
				return err
			}
			if f.asJSON {
				return printRaw(std, answer.Data)
			}
			text := "is forgotten; its dead letters stay (--dead-letters removes them too)"
			if letters {
				text = "is forgotten, with its dead letters"
			}
			_, err = fmt.Fprintln(std.Out, term.Sanitize(args[0]), text)
			return err
		},
	}
	cmd.Flags().BoolVar(&letters, "dead-letters", false, "remove its dead letters too")
	f.register(cmd, std)
	return cmd
}

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay/daemon"
)

// pageSize is the number of list entries per request.
const pageSize = 500

// deadLetterInfo is an entry of the dead letter list in the admin API.
type deadLetterInfo struct {
	ID       string `json:"id"`
	Topic    string `json:"topic"`
	Hub      string `json:"hub"`
	Account  string `json:"account"`
	Time     string `json:"time"`
	Reason   string `json:"reason"`
	Attempts int    `json:"attempts"`
}

// deadLetterFilter selects dead letters of a sink.
type deadLetterFilter struct {
	topics     []string
	hub, since string
}

func (f *deadLetterFilter) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.topics, "topic", nil, "only these topics, a pattern such as '*.error'; may be repeated")
	flags.StringVar(&f.hub, "hub", "", "only this hub")
	flags.StringVar(&f.since, "since", "", "only dead letters since a duration ago (2h) or an RFC 3339 time")
}

func (f *deadLetterFilter) isSet() bool { return len(f.topics) > 0 || f.hub != "" || f.since != "" }

// queryParams returns the filter as query parameters of the API.
func (f *deadLetterFilter) queryParams(cmd *cobra.Command) (url.Values, error) {
	q := url.Values{}
	for _, topic := range f.topics {
		q.Add("topic", topic)
	}
	if f.hub != "" {
		q.Set("hub", f.hub)
	}
	if f.since != "" {
		at, err := parseSince(f.since, time.Now())
		if err != nil {
			return nil, NewUsageError(cmd, err)
		}
		q.Set("since", at.UTC().Format(time.RFC3339Nano))
	}
	return q, nil
}

func newDeadletters(std term.Streams) *cobra.Command {
	cmd := commandGroup("deadletters", "Show, replay and drop deliveries that failed",
		newLettersList(std), newLettersShow(std),
		newLettersChange(std, deadLetterAction{
			verb: "replay", pastTense: "replayed", short: "Deliver dead letters again",
			long: "Delivers dead letters again, with the same ids and a new retry schedule.",
		}),
		newLettersChange(std, deadLetterAction{
			verb: "drop", pastTense: "dropped", short: "Remove dead letters", confirm: true,
			long: "Removes dead letters permanently. With --all it asks for confirmation on a terminal, and " +
				"requires --yes otherwise.",
		}),
	)
	cmd.Long = `A dead letter is a delivery that the receiver rejected permanently or that has no retries left. Its id
is the id of the delivery. It is kept until it is replayed or dropped.

` + adminHelp
	return cmd
}

func newLettersList(std term.Streams) *cobra.Command {
	var f adminFlags
	var filter deadLetterFilter
	cmd := &cobra.Command{
		Use:   "list SINK",
		Short: "List the dead letters of a sink, oldest first",
		Long: `Lists the dead letters of a sink, oldest first. AGE is the time since the last attempt, TRIES the number
of attempts. 'deadletters show' prints all details of one. On a terminal, long values are truncated and columns are
omitted.`,
		Example: `  hubrelay deadletters list billing
  hubrelay deadletters list billing --topic '*.error' --since 2h --json`,
		Args: exactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query, err := filter.queryParams(cmd)
			if err != nil {
				return err
			}
			client, err := f.newClient(std)
			if err != nil {
				return err
			}
			return listLetters(cmd.Context(), std, client, args[0], query, f.asJSON)
		},
	}
	filter.register(cmd)
	f.register(cmd, std)
	return cmd
}

func listLetters(ctx context.Context, std term.Streams, client *adminClient, sink string, query url.Values,
	asJSON bool,
) error {
	paint := term.NewPalette(std.Out, std.Env)
	found := false
	err := forEachPage(ctx, client, sinkPath(sink, "deadletters"), query, func(page []json.RawMessage) error {
		found = found || len(page) > 0
		if asJSON {
			return printRaw(std, page...)
		}
		var rows [][]string
		for _, raw := range page {
			var l deadLetterInfo
			if err := decodeData(raw, &l); err != nil {
				return err
			}
			rows = append(rows, []string{
				term.Sanitize(l.ID), term.FormatAgo(l.Time), term.Sanitize(l.Topic), term.Sanitize(l.Hub), strconv.Itoa(
					l.Attempts), shortReason(l.Reason),
			})
		}
		if len(rows) == 0 {
			return nil
		}
		return term.PrintTableWithin(std.Out, paint, term.Width(std.Out), []term.Column{
			{Title: "ID"},
			{Title: "AGE", Right: true},
			{Title: "TOPIC", MaxWidth: 24, Paint: func(cell, padded string) string {
				return strings.Replace(paint.Topic(cell), cell, padded, 1)
			}},
			{Title: "HUB", MaxWidth: 12, DropOrder: 2},
			{Title: "TRIES", Right: true, DropOrder: 1},
			{Title: "REASON", MinWidth: 32},
		}, rows)
	})
	if err == nil && !found && !asJSON {
		message := "no dead letters"
		if len(query) > 0 {
			message += " match"
		}
		_, err = fmt.Fprintln(std.Out, message)
	}
	return err
}

// shortReason omits the destination and the operation, which are the same for all dead letters of a sink, and the
// kind, which TRIES shows.
func shortReason(reason string) string {
	for _, kind := range daemon.DeadLetterReasons() {
		reason = strings.TrimPrefix(reason, kind+": ")
	}
	reason = strings.TrimPrefix(reason, "render the ") // template: line 3: …
	if kind, rest, ok := strings.Cut(reason, "post to "); ok {
		if _, why, found := strings.Cut(rest, ": "); found {
			reason = kind + why
		}
	}
	return term.Sanitize(reason)
}

// forEachPage calls visit with each page of a list.
func forEachPage(ctx context.Context, client *adminClient, path string, query url.Values,
	visit func([]json.RawMessage) error,
) error {
	q := url.Values{"limit": {strconv.Itoa(pageSize)}}
	for name, values := range query {
		q[name] = values
	}
	for {
		var page struct {
			Data []json.RawMessage
			Next string
		}
		if err := client.get(ctx, path, q, &page); err != nil {
			return err
		}
		if err := visit(page.Data); err != nil {
			return err
		}
		if page.Next == "" || page.Next == q.Get("after") {
			return nil
		}
		q.Set("after", page.Next)
	}
}

func newLettersShow(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:     "show SINK ID",
		Short:   "Show a dead letter with its notification and every attempt",
		Example: "  hubrelay deadletters show billing 019aa0c2f4e17b3c00000001",
		Args:    exactNamedArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := f.newClient(std)
			if err != nil {
				return err
			}
			var answer struct{ Data json.RawMessage }
			if err := client.get(cmd.Context(), sinkPath(args[0], "deadletters", args[1]), nil, &answer); err != nil {
				return err
			}
			if f.asJSON {
				return printRaw(std, answer.Data)
			}
			return showLetter(std, args[0], answer.Data)
		},
	}
	f.register(cmd, std)
	return cmd
}

// deadLetterContent is a dead letter with its notifications and attempts.
type deadLetterContent struct {
	deadLetterInfo
	// One notification, several for a batch, or the raw text if it cannot be decoded.
	Notification  json.RawMessage   `json:"notification"`
	Notifications []json.RawMessage `json:"notifications"`
	Raw           string            `json:"raw"`
	Batch         bool              `json:"batch"`
	Digest        *struct {
		Count  int               `json:"count"`
		First  string            `json:"first"`
		Last   string            `json:"last"`
		By     map[string]string `json:"by"`
		Topics map[string]int    `json:"topics"`
	} `json:"digest"`
	Attempts []struct {
		Time    string  `json:"time"`
		Outcome string  `json:"outcome"`
		Status  int     `json:"status"`
		Answer  string  `json:"answer"`
		Error   string  `json:"error"`
		MS      float64 `json:"ms"`
	} `json:"attempts"`
}

func showLetter(std term.Streams, sink string, raw json.RawMessage) error {
	var l deadLetterContent
	if err := decodeData(raw, &l); err != nil {
		return err
	}
	if len(l.Notification) > 0 && string(l.Notification) != "null" && len(l.Notifications) == 0 {
		l.Notifications = []json.RawMessage{l.Notification}
	}
	p := term.NewPalette(std.Out, std.Env)
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s %s\n", p.Bold(fmt.Sprintf("%-9s", name)), term.Sanitize(value))
		}
	}
	line("id", l.ID)
	line("sink", sink)
	line("topic", l.Topic)
	line("hub", l.Hub)
	line("account", l.Account)
	if d := l.Digest; d != nil {
		line("digest", fmt.Sprintf("of %d, the first %s, the last %s; lists %d", d.Count, d.First, d.Last,
			len(l.Notifications)))
		line("by", commonText(d.By))
		line("topics", topicsText(d.Topics))
	}
	if l.Batch {
		line("batch", fmt.Sprintf("of %d; the topic is the topic of the first", len(l.Notifications)))
	}
	line("failed", fmt.Sprintf("%s (%s ago)", l.Time, term.FormatAgo(l.Time)))
	line("reason", l.Reason)
	fmt.Fprintf(&b, "\n%s\n", p.Bold(fmt.Sprintf("attempts: %d", len(l.Attempts))))
	for i, a := range l.Attempts {
		status := "-"
		if a.Status != 0 {
			status = strconv.Itoa(a.Status)
		}
		text := fmt.Sprintf("%3d  %s  %-9s  %3s  %6.0f ms  %s", i+1, a.Time, a.Outcome, status, a.MS, a.Error)
		b.WriteString(strings.TrimRight(term.Sanitize(text), " ") + "\n")
		for answer := range strings.Lines(a.Answer) {
			fmt.Fprintf(&b, "     %s %s\n", p.Dim("|"), term.Sanitize(strings.TrimRight(answer, "\r\n")))
		}
	}
	for i, n := range l.Notifications {
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, n, "", "  "); err != nil {
			return fmt.Errorf("decode response: %w", err)
		}
		title := "notification"
		if len(l.Notifications) > 1 {
			title = fmt.Sprintf("notification %d of %d", i+1, len(l.Notifications))
		}
		fmt.Fprintf(&b, "\n%s\n", p.Bold(title))
		for text := range strings.Lines(pretty.String()) {
			b.WriteString(term.Sanitize(strings.TrimRight(text, "\n")) + "\n")
		}
	}
	if l.Raw != "" {
		fmt.Fprintf(&b, "\n%s\n%s\n", p.Bold("stored text, not a notification"), term.Sanitize(l.Raw))
	}
	if b.Len() == 0 {
		return errors.New("the response is empty: does the daemon have another version?")
	}
	_, err := std.Out.Write([]byte(b.String()))
	return err
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

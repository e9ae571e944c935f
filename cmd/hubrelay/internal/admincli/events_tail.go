package admincli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/await"
)

const (
	// tailInterval is the time between two searches for new events.
	tailInterval = 500 * time.Millisecond
	// settleTime is the time for which an event waits for the first attempts of all sinks.
	settleTime = 2 * time.Second
	// lateTime is the time by which an event may be found later than a newer one, because of the clocks of several Redis
	// servers.
	lateTime = 5 * time.Second
	// maxPending is the number of events that wait for attempts. Further ones are printed without the states of their deliveries.
	maxPending = 200
)

type tailFlags struct {
	adminFlags
	filter adminapi.SearchEventsRequest
	lines  int
}

func newEventsTail(std term.Streams) *cobra.Command {
	var f tailFlags
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Follow the events with their state at each sink",
		Long: `Prints the newest events that match all flags, and then new ones until it is interrupted. Each line has the time, the
ID, the topic and the state at each sink that selects the event. An event is printed when all of these sinks have attempted
it, or after two seconds. If many events arrive, some lines have no states; 'events show ID' shows them.

It waits for a relay that restarts. With -o jsonl, each line is what 'events show ID -o jsonl' prints.`,
		Example: `  hubrelay events tail --topic '*.error'
  hubrelay events tail --hub my-hub -o jsonl | jq -c '.sinks[] | select(.state == "dead")'`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.lines < 0 || f.lines > maxSearchPage {
				return command.NewUsageError(cmd, fmt.Errorf("--lines must be from 0 to %d", maxSearchPage))
			}
			if err := f.CheckStream(cmd); err != nil {
				return err
			}
			return tailEvents(cmd.Context(), std, &f)
		},
	}
	registerEventFilter(cmd, &f.filter)
	cmd.Flags().IntVarP(&f.lines, "lines", "n", 10, "number of earlier events to print first")
	f.register(cmd, std)
	return cmd
}

// follower finds new events and prints them in their order.
type follower struct {
	std   term.Streams
	flags *tailFlags
	conn  *adminConn

	start   time.Time            // later events are new
	since   time.Time            // of the next search
	seen    map[string]time.Time // the times of the events since then, by ID
	pending []pendingEvent       // the oldest first
}

// pendingEvent waits for its first attempts.
type pendingEvent struct {
	adminapi.Event
	foundAt time.Time
}

func tailEvents(ctx context.Context, std term.Streams, f *tailFlags) error {
	conn, err := f.connect(std)
	if err != nil {
		return err
	}
	t := &follower{std: std, flags: f, conn: conn, seen: make(map[string]time.Time)}
	if err := t.findFirst(ctx); err != nil {
		return err
	}
	isAway := false
	for {
		err := t.printSettled(ctx)
		if err == nil {
			err = t.findNew(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil // the user has interrupted it
		case errors.Is(err, errNoRelay):
			if !isAway {
				_, _ = fmt.Fprintln(std.Err, "the relay does not respond, waiting for it")
			}
		case err != nil:
			return err
		}
		isAway = err != nil
		_ = await.Duration(ctx, tailInterval)
	}
}

// findFirst adds the newest events, and finds the time from which on events are new.
func (f *follower) findFirst(ctx context.Context) error {
	newest, err := callRelay(ctx, f.conn, adminapi.SearchEvents(),
		adminapi.SearchEventsRequest{PageRequest: adminapi.PageRequest{Limit: 1}})
	if err != nil {
		return err
	}
	for _, e := range newest.Data {
		f.start, f.since = e.Time, e.Time.Add(-lateTime)
		f.seen[e.ID] = e.Time
	}
	if f.flags.lines == 0 {
		return nil
	}
	request := f.flags.filter
	request.Limit = f.flags.lines
	page, err := callRelay(ctx, f.conn, adminapi.SearchEvents(), request)
	clear(f.seen)
	f.add(page.Data)
	return err
}

// findNew adds the events that were stored since the last search.
func (f *follower) findNew(ctx context.Context) error {
	var found []adminapi.Event
	request := f.flags.filter
	request.Since, request.Limit = f.since.UTC().Format(time.RFC3339Nano), maxSearchPage
	for {
		page, err := callRelay(ctx, f.conn, adminapi.SearchEvents(), request)
		if err != nil {
			return err
		}
		for _, e := range page.Data {
			if e.Time.After(f.start) {
				found = append(found, e)
			}
		}
		if request.After = page.Next; page.Next == "" {
			break
		}
	}
	f.add(found)
	for id, at := range f.seen {
		if at.Before(f.since) {
			delete(f.seen, id)
		}
	}
	return nil
}

// add adds events that were not seen yet. list begins with the newest.
func (f *follower) add(list []adminapi.Event) {
	now := time.Now()
	for _, e := range slices.Backward(list) {
		if _, isKnown := f.seen[e.ID]; isKnown {
			continue
		}
		f.seen[e.ID] = e.Time
		f.pending = append(f.pending, pendingEvent{e, now})
		if since := e.Time.Add(-lateTime); since.After(f.since) {
			f.since = since
		}
	}
}

// printSettled prints the first events that all sinks have attempted or that have waited long enough.
func (f *follower) printSettled(ctx context.Context) error {
	for len(f.pending) > 0 {
		e := &f.pending[0]
		details := &adminapi.EventDetails{Event: e.Event}
		if len(f.pending) <= maxPending {
			found, err := callRelay(ctx, f.conn, adminapi.ShowEvent(), adminapi.Empty{}, e.ID)
			if err != nil {
				return err
			}
			if details = &found; !isSettled(details) && time.Since(e.foundAt) < settleTime {
				return nil
			}
		}
		if err := f.printEvent(details); err != nil {
			return err
		}
		f.pending = f.pending[1:]
	}
	return nil
}

// isSettled reports whether each sink has attempted an event or does not get it.
func isSettled(e *adminapi.EventDetails) bool {
	return !slices.ContainsFunc(e.Sinks, func(s adminapi.EventSink) bool {
		return (s.State == adminapi.DeliveryWaiting || s.State == adminapi.DeliveryUnknown) && len(s.Attempts) == 0 && s.Reason == ""
	})
}

func (f *follower) printEvent(e *adminapi.EventDetails) error {
	if !f.flags.IsTable() {
		return f.flags.Print(f.std.Out, e)
	}
	paint := term.NewPalette(f.std.Out, f.std.Env)
	topic := term.Sanitize(e.Topic)
	_, err := fmt.Fprintf(f.std.Out, "%s  %s  %s  %s\n", formatTime(e.Time), term.Sanitize(e.ID),
		topicPainter(paint)(topic, fmt.Sprintf("%-26s", topic)), formatStates(paint, e))
	return err
}

// formatStates describes the states at the sinks that select an event.
func formatStates(p term.Palette, e *adminapi.EventDetails) string {
	if e.Sinks == nil {
		return p.Dim("…")
	}
	var parts []string
	for i := range e.Sinks {
		s := &e.Sinks[i]
		if s.State == adminapi.DeliveryNotMatched {
			continue
		}
		text := string(s.State)
		if n := len(s.Attempts); n > 0 && s.Attempts[n-1].Status != 0 {
			text += " " + strconv.Itoa(s.Attempts[n-1].Status)
		}
		parts = append(parts, term.Sanitize(s.Sink)+" "+paintState(p, s.State, text))
	}
	if len(parts) == 0 {
		return p.Dim("no sink selects it")
	}
	return strings.Join(parts, ", ")
}

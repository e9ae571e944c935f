package admincli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// maxSearchPage is the maximum number of events in a response.
const maxSearchPage = 500

func newEvents(std term.Streams) *cobra.Command {
	cmd := command.NewGroup("events", "Find events and show their deliveries", newEventsSearch(std), newEventsTail(std),
		newEventsShow(std))
	cmd.Long = `Finds events in the log, which keeps them for redis.retention, and their history.

` + adminHelp
	return cmd
}

type searchFlags struct {
	adminFlags
	request adminapi.SearchEventsRequest
	limit   int
}

func newEventsSearch(std term.Streams) *cobra.Command {
	var f searchFlags
	cmd := &cobra.Command{
		Use:   "search",
		Short: "List the events that match, newest first",
		Long: `Lists the events in the log that match all flags, newest first. PUBLISHER is the API key or source that
published the event, the inbox, or the relay itself.

The log has no index. A search in a large log takes some seconds per million events; --since or --hub makes it shorter.`,
		Example: `  hubrelay events search --container 5f9c2b1e8a3d4c0017e5a903 --since 24h
  hubrelay events search --topic 'billing.*' --publisher ops --json | jq -r .id`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.limit < 1 {
				return command.NewUsageError(cmd, errors.New("--limit must be at least 1"))
			}
			if err := command.FixTimeFlag(cmd, "since", &f.request.Since); err != nil {
				return err
			}
			if err := command.FixTimeFlag(cmd, "until", &f.request.Until); err != nil {
				return err
			}
			return searchEvents(cmd.Context(), std, &f)
		},
	}
	registerEventFilter(cmd, &f.request)
	flags := cmd.Flags()
	flags.StringVar(&f.request.Since, "since", "", "only events newer than an age such as 2h, or a time (RFC 3339)")
	flags.StringVar(&f.request.Until, "until", "", "only events older than an age such as 2h, or a time (RFC 3339)")
	flags.IntVar(&f.limit, "limit", 100, "maximum number of events")
	f.register(cmd, std)
	return cmd
}

// registerEventFilter adds the flags that select events by their content.
func registerEventFilter(cmd *cobra.Command, request *adminapi.SearchEventsRequest) {
	flags := cmd.Flags()
	flags.StringVar(&request.ObjectID, "object", "", "only events with this object ID")
	flags.StringVar(&request.ContainerID, "container", "", "only events with this container in their context")
	flags.StringVar(&request.EnvironmentID, "environment", "", "only events with this environment in their context")
	flags.StringVar(&request.Cluster, "cluster", "", "only events with this cluster in their context")
	flags.StringVar(&request.DNSZone, "dns-zone", "", "only events with this DNS zone in their context")
	flags.StringSliceVar(&request.Topics, "topic", nil, "only these topics, a pattern such as '*.error'; may be repeated")
	flags.StringVar(&request.HubID, "hub", "", "only events of this hub")
	flags.StringVar(&request.AccountID, "account", "", "only events of this account")
	flags.StringVar(&request.Publisher, "publisher", "", `only events of this key or source, such as ops or "key ops", or of inbox or relay`)
}

func searchEvents(ctx context.Context, std term.Streams, f *searchFlags) error {
	c, err := f.connect(std)
	if err != nil {
		return err
	}
	isCut := false
	err = printPages(std, &f.Output, func(visit func([]adminapi.Event) error) error {
		list, more, err := findEvents(ctx, std, c, f)
		isCut = more
		return errors.Join(err, visit(list))
	}, func(list []adminapi.Event) error { return printEvents(std, list) }, "no events match")
	if err == nil && isCut && f.IsTable() {
		_, err = fmt.Fprintf(std.Err, "these are the newest %d: use --limit or --until to see older ones\n", f.limit)
	}
	return err
}

// findEvents returns up to f.limit events, and whether there may be more. On a terminal it shows the progress of a long
// search.
func findEvents(
	ctx context.Context, std term.Streams, c *adminConn, f *searchFlags,
) (list []adminapi.Event, more bool, err error) {
	return findNewest(f.limit, func(limit int, after string) ([]adminapi.Event, string, error) {
		f.request.Limit, f.request.After = limit, after
		page, err := callRelay(ctx, c, adminapi.SearchEvents(), f.request)
		if len(page.Data) < limit && page.Next != "" && term.IsTerminal(std.Err) {
			_, _ = fmt.Fprintf(std.Err, "searched back to %s …\n", formatTime(page.SearchedTo))
		}
		return page.Data, page.Next, err
	})
}

func printEvents(std term.Streams, list []adminapi.Event) error {
	rows := make([][]string, len(list))
	for i, e := range list {
		rows[i] = newRow(e.ID, formatTime(e.Time), e.Topic, e.HubID, e.ObjectID, publisherText(e.Publisher))
	}
	paint := term.NewPalette(std.Out, std.Env)
	return term.PrintTableWithin(std.Out, paint, term.Width(std.Out), []term.Column{
		{Title: "ID"},
		{Title: "TIME"},
		{Title: "TOPIC", Paint: topicPainter(paint)},
		{Title: "HUB", DropOrder: 2},
		{Title: "OBJECT", DropOrder: 1},
		{Title: "PUBLISHER", MaxWidth: 32},
	}, rows)
}

func publisherText(p adminapi.Publisher) string {
	if p.Name == "" {
		return p.Kind
	}
	return p.Kind + " " + p.Name
}

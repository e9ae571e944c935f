package admincli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

func newDeliveries(std term.Streams) *cobra.Command {
	cmd := command.NewGroup("deliveries", "List, retry and drop the deliveries of sinks", newDeliveriesList(std),
		newDeliveriesRetry(std), newDeliveriesDrop(std))
	cmd.Long = `Lists the deliveries of events to sinks, retries and drops them. 'hubrelay events show ID' shows all deliveries of
one event.

` + adminHelp
	return cmd
}

type deliveriesFlags struct {
	adminFlags
	request  adminapi.ListDeliveriesRequest
	allSinks bool
	limit    int
}

func newDeliveriesList(std term.Streams) *cobra.Command {
	var f deliveriesFlags
	cmd := &cobra.Command{
		Use:   "list [SINK | --all-sinks]",
		Short: "List the deliveries of a sink, or of all sinks",
		Long: `Lists deliveries by state:

  retrying   failed, replayed, postponed, or after another delivery with the same ordering key; NEXT ATTEMPT is empty
             during an attempt
  waiting    in the queue of the sink; an open digest is one line, and is sent at NEXT ATTEMPT
  dead       dead letters; ATTEMPTS also counts the attempts before 'deadletters replay'. A batch or digest is one line with
             its first event; 'deadletters show' lists all
  dropped    dropped by an operator, or because the account had used its share of the backlog; ERROR says
             which (JSON: reason), and LAST ATTEMPT the time of the drop. Events that a full queue dropped, and dropped dead
             letters, are not listed
  delivered  accepted by the destination

'deliveries retry' and 'deliveries drop' take EVENT, or DELIVERY for a batch or digest. delivered and dropped come from
the history, which is limited by history in the configuration. ATTEMPTS starts again with 'sinks replay'.
LAST ATTEMPT is the time since the last attempt, and NEXT ATTEMPT the time until the next, or until the probe of a sink that
is down. A sink that is paused or disabled makes none until it is resumed. --since compares the time of the last attempt, or
the time of the event if there was none. A replayed event can have several lines.`,
		Example: `  hubrelay deliveries list billing --state retrying
  hubrelay deliveries list --all-sinks --state dead,retrying --since 1h
  hubrelay deliveries list billing --since 1d -o jsonl | jq -r .event_id`,
		Args: command.NamedArgs(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.limit < 1:
				return command.NewUsageError(cmd, errors.New("--limit must be at least 1"))
			case len(args) > 0 == f.allSinks || len(args) > 0 && args[0] == "":
				return command.NewUsageError(cmd, errors.New("specify either a sink or --all-sinks"))
			case len(args) > 0:
				f.request.Sink = args[0]
			}
			if err := command.FixTimeFlag(cmd, "since", &f.request.Since); err != nil {
				return err
			}
			return listDeliveries(cmd.Context(), std, &f)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.request.States, "state", nil, "only these states: retrying, waiting, dead, dropped, delivered; may be repeated")
	flags.StringSliceVar(&f.request.Topics, "topic", nil, "only these topics, a pattern such as '*.error'; may be repeated")
	flags.StringVar(&f.request.Since, "since", "", "only deliveries newer than an age such as 2h, or a time (RFC 3339)")
	flags.BoolVar(&f.allSinks, "all-sinks", false, "the deliveries of all sinks")
	flags.IntVar(&f.limit, "limit", 1000, "maximum number of deliveries")
	f.register(cmd, std)
	return cmd
}

// errEnough ends a list at its limit.
var errEnough = errors.New("the limit is reached")

func listDeliveries(ctx context.Context, std term.Streams, f *deliveriesFlags) error {
	c, err := f.connect(std)
	if err != nil {
		return err
	}
	var list []adminapi.Delivery
	isCut := false
	err = printPages(std, &f.Output, func(visit func([]adminapi.Delivery) error) error {
		err := forEachPage(ctx, c, adminapi.ListDeliveries(), func(p adminapi.PageRequest) adminapi.ListDeliveriesRequest {
			f.request.PageRequest = p
			f.request.Limit = min(f.request.Limit, f.limit+1-len(list)) // one more shows that the list is cut
			return f.request
		}, func(page []adminapi.Delivery) error {
			list = append(list, page...)
			if len(list) > f.limit {
				return errEnough
			}
			return nil
		})
		if isCut = errors.Is(err, errEnough); isCut {
			list, err = list[:f.limit], nil
		}
		return errors.Join(err, visit(list))
	}, func(list []adminapi.Delivery) error { return printDeliveries(std, list, f.allSinks) }, "no deliveries match")
	if err == nil && isCut {
		_, err = fmt.Fprintf(std.Err, "the list ends after %d: use a larger --limit, or --state, to see others\n", f.limit)
	}
	return err
}

// describeFailure returns the error of a delivery, or why it was dropped.
func describeFailure(d *adminapi.Delivery) string {
	switch {
	case d.State != adminapi.DeliveryDropped:
		return shortError(d.Error)
	case d.Reason == adminapi.DroppedByOperator:
		return "dropped by an operator"
	}
	return "dropped: " + term.Sanitize(d.Reason)
}

func printDeliveries(std term.Streams, list []adminapi.Delivery, withSink bool) error {
	rows := make([][]string, len(list))
	now, withID := time.Now(), false
	for i, d := range list {
		last, next := "", ""
		if d.LastAttemptAt != nil {
			last = term.FormatAgo(*d.LastAttemptAt)
		}
		if d.NextAttemptAt != nil {
			next = "now"
			if wait := d.NextAttemptAt.Sub(now); wait > 0 {
				next = term.FormatAge(wait)
			}
		}
		if d.DigestEvents > 0 {
			d.EventID = term.Pluralize(d.DigestEvents, "event")
		}
		withID = withID || d.DeliveryID != ""
		rows[i] = newRow(d.EventID, d.DeliveryID, d.Sink, string(d.State), d.Topic, strconv.Itoa(d.Attempts), last, next, describeFailure(&d))
	}
	paint := term.NewPalette(std.Out, std.Env)
	columns := []term.Column{
		{Title: "EVENT"},
		{Title: "DELIVERY"},
		{Title: "SINK", MaxWidth: 24},
		{Title: "STATE"},
		{Title: "TOPIC", MaxWidth: 24, DropOrder: 3, Paint: topicPainter(paint)},
		{Title: "ATTEMPTS", Right: true, DropOrder: 1},
		{Title: "LAST ATTEMPT", Right: true},
		{Title: "NEXT ATTEMPT", Right: true},
		{Title: "ERROR", MinWidth: 24},
	}
	if !withSink {
		columns, rows = term.RemoveColumn(columns, rows, 2)
	}
	if !withID {
		columns, rows = term.RemoveColumn(columns, rows, 1)
	}
	return term.PrintTableWithin(std.Out, paint, term.Width(std.Out), columns, rows)
}

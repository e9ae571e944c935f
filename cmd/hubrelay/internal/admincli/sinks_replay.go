package admincli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/envelope"
)

func newSinksReplay(std term.Streams) *cobra.Command {
	var f adminFlags
	var request adminapi.ReplayRequest
	var since string
	var confirmed bool
	cmd := &cobra.Command{
		Use:   "replay NAME {--since TIME | --after CURSOR | --id ID…}",
		Short: "Deliver events from the log again",
		Long: `Delivers events of the log again that match the filter of the sink and all given options. IDs are unchanged.
redis.retention limits the age of the log.

TIME is an age, such as 2h or 1d, or a time (RFC 3339). CURSOR is the cursor of a stream, or the ID of an entry of the log.
The cursor of a hub's stream covers all hubs of the same partition, so add --hub.

--failed-only selects the events that the sink has not accepted, according to the history: dead letters, also those that
were dropped, and dropped deliveries. What is still retried is skipped. 'deadletters replay' also removes the dead
letters. The history lacks events that a full queue dropped, those that a digest only counts, and attempts in the last second
of a node that was killed: replay them without --failed-only.

On a terminal, the command shows how many events the sink would receive, and asks for confirmation. Elsewhere it starts at
once.`,
		Example: `  hubrelay sinks replay billing --since 2h --dry-run
  hubrelay sinks replay billing --since 2026-11-20T08:00:00Z --until 2026-11-20T09:00:00Z --topic 'job.*'
  hubrelay sinks replay billing --since 1d --failed-only
  hubrelay sinks replay billing --id 6b079575000001387d13e119`,
		Args: command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := command.RejectTogether(cmd, "since", "after"); err != nil {
				return err
			}
			if err := command.FixTimeFlag(cmd, "since", &since); err != nil {
				return err
			}
			if err := command.FixTimeFlag(cmd, "until", &request.Until); err != nil {
				return err
			}
			request.After = cmp.Or(request.After, since)
			if request.After == "" && len(request.EventIDs) == 0 {
				return command.NewUsageError(cmd, errors.New("a selection is required: use --since TIME, --after CURSOR or --id ID"))
			}
			err := replaySink(cmd.Context(), std, &f, args[0], request, confirmed)
			var rejected *envelope.Error
			if errors.As(err, &rejected) && rejected.Source == "/after" { // name the flag instead of the member
				rejected.Detail, rejected.Source = "--"+rejected.Detail, ""
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&since, "since", "", "only events newer than an age such as 2h, or a time (RFC 3339)")
	flags.StringVar(&request.After, "after", "", "only events after a cursor")
	flags.StringVar(&request.Until, "until", "", "only events older than an age such as 2h, or a time (RFC 3339)")
	flags.StringSliceVar(&request.Topics, "topic", nil, "only events with these topics, such as 'job.*'")
	flags.StringVar(&request.HubID, "hub", "", "only events of this hub")
	flags.StringSliceVar(&request.EventIDs, "id", nil, "only events with these IDs, at most 1000")
	flags.BoolVar(&request.FailedOnly, "failed-only", false, "only events that the sink has not accepted")
	flags.BoolVar(&request.DryRun, "dry-run", false, "only count the events that the sink would receive")
	flags.BoolVarP(&confirmed, "yes", "y", false, "do not ask for confirmation")
	f.register(cmd, std)
	return cmd
}

func replaySink(
	ctx context.Context, std term.Streams, f *adminFlags, name string, request adminapi.ReplayRequest, confirmed bool,
) error {
	c, err := f.connect(std)
	if err != nil {
		return err
	}
	if !request.DryRun && !confirmed && canConfirm(std) {
		if err := confirmReplay(ctx, std, c, name, request); err != nil {
			return err
		}
	}
	result, err := callRelay(ctx, c, adminapi.ReplaySink(), request, name)
	switch {
	case err != nil:
		return err
	case !f.IsTable():
		return f.Print(std.Out, result)
	}
	if len(request.EventIDs) > 0 && !request.FailedOnly && result.Replayed+result.Skipped == 0 {
		return fmt.Errorf("no event was replayed to %s: the log has none of these IDs, or the filter of the sink excludes them; "+
			"'hubrelay events show' prints the reason", term.Sanitize(name))
	}
	events, text := term.Pluralize(result.Replayed, "event"), "%s receives %s again"
	if request.DryRun {
		text = "%s would receive %s again"
	}
	text = fmt.Sprintf(text, name, events)
	if result.Skipped > 0 {
		text += fmt.Sprintf("; skipped, because they still wait or are retried: %d", result.Skipped)
	}
	if result.Replayed == 0 && result.Skipped == 0 {
		text += "; all options and the filter of the sink must match an event"
	}
	if !result.Complete && request.After != "" {
		text += "; the log may lack events of that time, because of redis.retention or 'accounts erase'"
	}
	_, err = fmt.Fprintln(std.Out, term.Sanitize(text))
	return err
}

// confirmReplay asks for confirmation with the number of events. Without events there is nothing to confirm.
func confirmReplay(
	ctx context.Context, std term.Streams, c *adminConn, name string, request adminapi.ReplayRequest,
) error {
	request.DryRun = true
	result, err := callRelay(ctx, c, adminapi.ReplaySink(), request, name)
	if err != nil || result.Replayed == 0 {
		return err
	}
	sink, err := callRelay(ctx, c, adminapi.ShowSink(), adminapi.Empty{}, name)
	if err != nil {
		return err
	}
	return confirmChange(ctx, std, fmt.Sprintf("send %s to the sink %s (%s) again?",
		term.Pluralize(result.Replayed, "event"), name, sink.Type))
}

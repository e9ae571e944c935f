package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

// replayRequest is a request of the admin API.
type replayRequest struct {
	After  string   `json:"after,omitempty"`
	Until  string   `json:"until,omitempty"`
	Topic  string   `json:"topic,omitempty"`
	Hub    string   `json:"hub,omitempty"`
	IDs    []string `json:"ids,omitempty"`
	DryRun bool     `json:"dry_run,omitempty"`
}

// replayResult is a response of the admin API.
type replayResult struct {
	Replayed, Waiting int64
	Complete          *bool
}

func newSinksReplay(std term.Streams) *cobra.Command {
	var f adminFlags
	var request replayRequest
	var confirmed bool
	var topics []string
	cmd := &cobra.Command{
		Use:   "replay NAME {--after CURSOR|TIME | --id ID…}",
		Short: "Deliver events from the log again",
		Long: `Delivers events of the log again that match the filter of the sink and all given options. IDs are unchanged.
redis.retention limits the age of the log.

TIME is RFC 3339 or a duration ago, such as 2h or 1d. CURSOR is the cursor of a stream, or the ID of an entry of the log. The
cursor of a hub's stream covers all hubs of the same partition, so add --hub.

On a terminal, the command shows how many events the sink would receive, and asks for confirmation. 'deadletters replay'
delivers failed events again.`,
		Example: `  hubrelay sinks replay billing --after 2h --dry-run
  hubrelay sinks replay billing --after 2026-11-20T08:00:00Z --until 2026-11-20T09:00:00Z --topic 'job.*'
  hubrelay sinks replay billing --id 6b079575000001387d13e119`,
		Args: exactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if request.After == "" && len(request.IDs) == 0 {
				return NewUsageError(cmd, errors.New("a selection is required: use --after CURSOR, --after TIME or --id ID"))
			}
			request.Topic = strings.Join(topics, ",")
			return replaySink(cmd.Context(), std, &f, args[0], request, confirmed)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&request.After, "after", "", "cursor, RFC 3339 time, or duration ago (2h, 1d)")
	flags.StringVar(&request.Until, "until", "", "only events stored before this time or duration ago")
	flags.StringSliceVar(&topics, "topic", nil, "only events with these topics, such as 'job.*'")
	flags.StringVar(&request.Hub, "hub", "", "only events of this hub")
	flags.StringSliceVar(&request.IDs, "id", nil, "only events with these IDs, at most 1000")
	flags.BoolVar(&request.DryRun, "dry-run", false, "only count the events")
	flags.BoolVarP(&confirmed, "yes", "y", false, "do not ask for confirmation")
	f.register(cmd, std)
	return cmd
}

func replaySink(
	ctx context.Context, std term.Streams, f *adminFlags, name string, request replayRequest, confirmed bool,
) error {
	client, err := f.newClient(std)
	if err != nil {
		return err
	}
	if !request.DryRun && !confirmed && canConfirm(std) {
		if err := confirmReplay(ctx, std, client, name, request); err != nil {
			return err
		}
	}
	raw, result, err := requestReplay(ctx, client, name, request)
	if err != nil {
		return err
	}
	if f.asJSON {
		return printRaw(std, raw)
	}
	events, text := term.Pluralize(int(result.Replayed), "event"), "%s receives %s again"
	if request.DryRun {
		text = "%s would receive up to %s again"
	}
	text = fmt.Sprintf(text, name, events)
	if result.Waiting > 0 {
		text += fmt.Sprintf("; already waiting for delivery: %d", result.Waiting)
	}
	if result.Complete != nil && !*result.Complete && request.After != "" {
		text += "; the log may no longer reach back that far (redis.retention)"
	}
	_, err = fmt.Fprintln(std.Out, term.Sanitize(text))
	return err
}

func requestReplay(
	ctx context.Context, client *adminClient, name string, request replayRequest,
) (json.RawMessage, replayResult, error) {
	var answer struct{ Data json.RawMessage }
	var result replayResult
	if err := client.post(ctx, sinkPath(name, "replay"), request, &answer); err != nil {
		return nil, result, err
	}
	return answer.Data, result, decodeData(answer.Data, &result)
}

// confirmReplay asks for confirmation with the number of events. Without events there is nothing to confirm.
func confirmReplay(
	ctx context.Context, std term.Streams, client *adminClient, name string, request replayRequest,
) error {
	request.DryRun = true
	_, result, err := requestReplay(ctx, client, name, request)
	if err != nil || result.Replayed == 0 {
		return err
	}
	var info struct{ Data sinkInfo }
	if err := client.get(ctx, sinkPath(name), nil, &info); err != nil {
		return err
	}
	return confirmChange(ctx, std, fmt.Sprintf("send up to %s to the sink %s (%s) again?",
		term.Pluralize(int(result.Replayed), "event"), name, info.Data.Type))
}

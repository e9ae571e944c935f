package admincli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/envelope"
)

// deliveryAction describes a command that changes deliveries.
type deliveryAction struct {
	operation                    adminapi.Operation[adminapi.ChangeDeliveriesRequest, adminapi.ChangeResult]
	verb, pastTense, short, long string
}

func newDeliveriesRetry(std term.Streams) *cobra.Command {
	return newDeliveriesChange(std, deliveryAction{
		adminapi.RetryDeliveries(), "retry", "retried", "Start scheduled retries now",
		`Attempts deliveries now, before their scheduled time. 'sinks retry' does so for all deliveries of a sink, and
'deadletters replay' for dead letters.`,
	})
}

func newDeliveriesDrop(std term.Streams) *cobra.Command {
	return newDeliveriesChange(std, deliveryAction{
		adminapi.DropDeliveries(), "drop", "dropped", "Drop deliveries that wait for an attempt",
		`Drops deliveries that are scheduled or wait in the queue of the sink, permanently. The destination never gets them from this
sink. A delivery that a node has read from the queue is not dropped: its attempt runs, or follows when a paused sink is
resumed.`,
	})
}

func newDeliveriesChange(std term.Streams, a deliveryAction) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   a.verb + " SINK ID...",
		Short: a.short,
		Long: a.long + `

ID is EVENT in the output of 'deliveries list', or DELIVERY for a batch or digest. The exit status is 1 if a delivery stays
unchanged.`,
		Example: fmt.Sprintf(`  hubrelay deliveries %[1]s billing 019aa0c2f4e17b3c00000001
  hubrelay deliveries list billing --state retrying --topic 'job.*' -o jsonl | jq -r '.delivery_id // .event_id' |
    xargs hubrelay deliveries %[1]s billing`, a.verb),
		Args: command.WithUsageErrors(func(_ *cobra.Command, args []string) error {
			if len(args) < 2 || slices.Contains(args, "") {
				return errors.New("specify a sink and IDs of its deliveries")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeDeliveries(cmd.Context(), std, &f, a, args[0], args[1:])
		},
	}
	f.register(cmd, std)
	return cmd
}

func changeDeliveries(
	ctx context.Context, std term.Streams, f *adminFlags, a deliveryAction, sink string, ids []string,
) error {
	c, err := f.connect(std)
	if err != nil {
		return err
	}
	total := adminapi.NewChangeResult(0)
	for sent := 0; sent < len(ids) && err == nil; sent += changeBatch {
		var result adminapi.ChangeResult
		part := ids[sent:min(sent+changeBatch, len(ids))]
		result, err = callRelay(ctx, c, a.operation, adminapi.ChangeDeliveriesRequest{IDs: part}, sink)
		total.Add(result)
		total.Changed += changedBefore(err)
	}
	err = printChange(std, &f.Output, &total, len(ids), a.pastTense, err, func() error {
		return printChangedDeliveries(std, a, sink, &total)
	})
	if err == nil && len(total.Unchanged) > 0 {
		err = command.ErrReported
	}
	return err
}

// printChange prints the result of a change of n items: in a format for programs, or with show. err is the error that ended the
// change. Programs get what was changed before it, and the returned error contains the number.
func printChange(
	std term.Streams, o *command.Output, total *adminapi.ChangeResult, n int, pastTense string, err error, show func() error,
) error {
	if err != nil && total.Changed > 0 {
		err = fmt.Errorf("%w; at least %d of %d were %s before that; run the command again for the rest", err, total.Changed, n, pastTense)
	} else if err != nil {
		return err
	}
	switch {
	case !o.IsTable():
		return errors.Join(err, o.Print(std.Out, total))
	case err != nil:
		return err
	}
	return show()
}

// changedBefore returns the number of items that a request has changed before its error.
func changedBefore(err error) int {
	var failed *envelope.Error
	if !errors.As(err, &failed) {
		return 0
	}
	changed, _ := failed.Extra["changed"].(float64)
	replayed, _ := failed.Extra["replayed"].(float64)
	return int(changed + replayed) // an error has one of them
}

func printChangedDeliveries(
	std term.Streams, a deliveryAction, sink string, total *adminapi.ChangeResult,
) error {
	_, err := fmt.Fprintln(std.Out,
		term.Sanitize(fmt.Sprintf("%s %s of %s", a.pastTense, term.Pluralize(total.Changed, "delivery"), sink)))
	var b strings.Builder
	for _, d := range total.Unchanged {
		fmt.Fprintf(&b, "%s was not %s: %s\n", term.Sanitize(d.ID), a.pastTense, describeUnchanged(d.Reason, sink))
	}
	_, errOut := fmt.Fprint(std.Err, b.String())
	return errors.Join(err, errOut)
}

func describeUnchanged(reason, sink string) string {
	switch reason {
	case adminapi.UnchangedRunning:
		return "a node has it, and attempts it now, or when the sink is resumed"
	case adminapi.UnchangedOrdering:
		return "it waits for an earlier delivery with its ordering key"
	case adminapi.UnchangedWaiting:
		return "it was not attempted yet; a node attempts it as soon as possible"
	case adminapi.UnchangedDigest:
		return "an open digest has it; 'hubrelay deliveries list " + term.Sanitize(sink) + "' shows when it is sent"
	case adminapi.UnchangedDead:
		return "it is a dead letter: use 'hubrelay deadletters replay' or 'drop'"
	case adminapi.UnchangedUnknown:
		return "Redis was too slow to find it: run the command again"
	default:
		return term.Sanitize(sink) + " has no waiting or retrying delivery with this ID. For an event of a batch or digest, " +
			"use the ID in the column DELIVERY of 'hubrelay deliveries list " + term.Sanitize(sink) + "'"
	}
}

package admincli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
)

func newSinksTest(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "test NAME",
		Short: "Send a sample to the destination of a sink",
		Long: `Lets the running relay send one sample through the sink, with its address, secrets and limits, and
prints the response and its duration. The sample is not stored and not retried. The command exits with 1 if the
destination does not accept the sample.`,
		Example: "  hubrelay sinks test billing",
		Args:    command.ExactNamedArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return testSink(cmd.Context(), std, &f, args[0]) },
	}
	f.register(cmd, std)
	return cmd
}

func testSink(ctx context.Context, std term.Streams, f *adminFlags, name string) error {
	attempt, err := connectAndCall(ctx, std, f, adminapi.TestSink(), adminapi.Empty{}, name)
	if err != nil {
		return err
	}
	if !f.IsTable() {
		if err := f.Print(std.Out, attempt); err != nil {
			return err
		}
	}
	text := name + ": " + describeOutcome(attempt.Outcome)
	if attempt.Status != 0 {
		text += fmt.Sprintf(" with status %d", attempt.Status)
	}
	text += fmt.Sprintf(" after %.1f ms", attempt.DurationMS)
	switch {
	case attempt.Outcome != relay.OutcomeDelivered.String():
		text += ": " + cmp.Or(attempt.Error, "the destination did not accept it")
		if line := firstLine(attempt.Response); line != "" {
			text += fmt.Sprintf(" with %q", line)
		}
		if attempt.Status >= 300 && attempt.Status < 400 {
			text += "; redirects are never followed, so set the final URL in the sink"
		}
		return errors.New(term.Sanitize(text + "; fix the destination or the settings of the sink and test again"))
	case !f.IsTable():
		return nil
	}
	_, err = fmt.Fprintln(std.Out, term.Sanitize(text))
	return err
}

// describeOutcome returns what the outcome of a sample means for deliveries.
func describeOutcome(outcome string) string {
	switch outcome {
	case relay.OutcomeRetry.String():
		return "failed, outcome retry (a delivery would be retried),"
	case relay.OutcomePermanent.String():
		return "rejected, outcome permanent (a delivery would become a dead letter),"
	case relay.OutcomeGone.String():
		return "rejected, outcome gone (a delivery would disable the sink),"
	default:
		return outcome
	}
}

// maxResponseText limits the text of the response in the output, in bytes.
const maxResponseText = 200

// firstLine returns the first line of text that is not empty.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return relay.Truncate(strings.TrimSpace(line), maxResponseText)
}

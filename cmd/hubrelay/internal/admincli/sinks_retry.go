package admincli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

func newSinksRetry(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "retry NAME",
		Short: "Start all scheduled retries of a sink now",
		Long: `Makes all scheduled retries of a sink due now, for example if the destination is available again before the
next attempt. Attempts start as fast as the rate and the concurrency of the sink allow. If an attempt fails, the
delivery continues its schedule. If the sink has an ordering, the first delivery of each hub or container is retried,
and the others follow. A pause that the destination requested still applies. Dead letters are not retried; see
'deadletters replay'.`,
		Example: "  hubrelay sinks retry billing",
		Args:    command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callAndPrint(cmd.Context(), std, &f, adminapi.RetrySink(), adminapi.Empty{}, func(r adminapi.RetryResult) error {
				_, err := fmt.Fprintln(std.Out, term.Sanitize(describeRetry(&r)))
				return err
			}, args[0])
		},
	}
	f.register(cmd, std)
	return cmd
}

// describeRetry describes what a retry started, with the state of the sink immediately before.
func describeRetry(r *adminapi.RetryResult) string {
	s := &r.Sink
	queued := s.Waiting - s.WaitingInDigests
	count := term.Pluralize(int(s.Retrying+queued), "delivery")
	text := ""
	switch {
	case s.Retrying+queued == 0:
		text = "has no deliveries to retry"
	case s.State == adminapi.SinkDown:
		text = "was down and attempts one of " + count + " now; if it succeeds, the others follow"
	case s.State == adminapi.SinkThrottled:
		text = "retries " + count + " at " + formatTime(s.NextAttemptAt) + ": " + s.Reason
	case s.State == adminapi.SinkFailed:
		text = "retries " + count + " as soon as it works: " + s.Reason
	case r.OnOtherNode:
		text = "makes " + count + " due; another node attempts them in order: if the sink is down there, start a probe with " +
			"'hubrelay sinks resume " + s.Name + "'"
	default:
		text = "retries " + count + " now"
	}
	if queued > 0 {
		text += fmt.Sprintf("; %d of them not attempted yet", queued)
	}
	if s.WaitingInDigests > 0 {
		text += fmt.Sprintf("; %d more are collected for a digest", s.WaitingInDigests)
	}
	return s.Name + " " + text
}

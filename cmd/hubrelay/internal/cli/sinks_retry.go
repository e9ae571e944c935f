package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

func newSinksRetry(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "retry NAME",
		Short: "Retry scheduled deliveries now",
		Long: `Makes all scheduled retries of a sink due now, for example if the receiver is available again before the
next attempt. Attempts start as fast as the rate and the concurrency of the sink allow. If an attempt fails, the
delivery continues its schedule. If the sink has an ordering, the first delivery of each hub or container is retried,
and the others follow. A pause that the receiver requested still applies. Dead letters are not retried; see
'deadletters replay'.`,
		Example: "  hubrelay sinks retry billing",
		Args:    exactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := f.newClient(std)
			if err != nil {
				return err
			}
			var answer struct{ Data json.RawMessage }
			if err := client.post(cmd.Context(), sinkPath(args[0], "retry"), nil, &answer); err != nil {
				return err
			}
			if f.asJSON {
				return printRaw(std, answer.Data)
			}
			var before sinkInfo
			if err := decodeData(answer.Data, &before); err != nil {
				return err
			}
			_, err = fmt.Fprintln(std.Out, term.Sanitize(before.describeRetry()))
			return err
		},
	}
	f.register(cmd, std)
	return cmd
}

// describeRetry describes what a retry started, with the numbers of 'sinks list' immediately before.
func (s *sinkInfo) describeRetry() string {
	waiting := s.Parked + s.Backlog
	count := term.Pluralize(int(waiting), "delivery")
	text := ""
	switch {
	case waiting == 0:
		text = "has no deliveries to retry"
	case s.State == "down":
		text = "was down and attempts one delivery now; after a success, the rest of " + count + " follows"
	case s.State == "resting":
		text = "retries " + count + " at " + s.RestingUntil + ": " + s.Reason
	case s.State == "failed":
		text = "retries " + count + " as soon as it works: " + s.Reason
	default:
		text = "retries " + count + " now"
	}
	if s.Backlog > 0 {
		text += fmt.Sprintf("; %d had no attempt yet", s.Backlog)
	}
	if s.Gathering > 0 {
		text += fmt.Sprintf("; %d more are collected for a digest", s.Gathering)
	}
	return s.Name + " " + text
}

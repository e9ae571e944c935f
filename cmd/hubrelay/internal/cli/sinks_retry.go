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
			var result struct{ Due int }
			if err := decodeData(answer.Data, &result); err != nil {
				return err
			}
			text := fmt.Sprintf("%s retries %d deliveries now", args[0], result.Due)
			switch result.Due {
			case 0:
				text = args[0] + " has no scheduled retries"
			case 1:
				text = args[0] + " retries 1 delivery now"
			}
			_, err = fmt.Fprintln(std.Out, term.Sanitize(text))
			return err
		},
	}
	f.register(cmd, std)
	return cmd
}

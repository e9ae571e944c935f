package cli

import (
	"encoding/json"
	"fmt"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/spf13/cobra"
)

func newSinksRetry(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "retry NAME",
		Short: "Try now what waits for another attempt",
		Long: `Makes everything due that waits for another attempt, for when the receiver is back before the sink's schedule ends. It is
tried as fast as the sink's rate and concurrency allow. What fails again waits for the next time of its schedule. Of a sink
with an ordering the first of each hub or container is tried, and what waits behind it follows. A rest that the receiver
asked for goes on; dead letters stay ('deadletters replay').`,
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
			if err := readAnswer(answer.Data, &result); err != nil {
				return err
			}
			text := fmt.Sprintf("%s tries %d deliveries now", args[0], result.Due)
			switch result.Due {
			case 0:
				text = args[0] + " has nothing that waits for another attempt"
			case 1:
				text = args[0] + " tries 1 delivery now"
			}
			_, err = fmt.Fprintln(std.Out, term.Sanitize(text))
			return err
		},
	}
	f.register(cmd, std)
	return cmd
}

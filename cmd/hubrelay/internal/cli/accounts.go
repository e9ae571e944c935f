package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

func newAccounts(std term.Streams) *cobra.Command {
	return commandGroup("accounts", "Delete the data of an account", newAccountsErase(std))
}

func newAccountsErase(std term.Streams) *cobra.Command {
	var f adminFlags
	var confirmed bool
	cmd := &cobra.Command{
		Use:   "erase ACCOUNT",
		Short: "Delete the notifications of an account from a running daemon",
		Long: `Deletes the notifications of an account: from the log, the queues and scheduled retries of all sinks, and
the dead letters. This cannot be undone. Revoke the keys of the account first. Otherwise new notifications may arrive.

Deliveries in progress, and notifications collected for a batch or digest, are not deleted. Run the command again after
they were delivered. Nodes keep recent notifications in memory until newer ones replace them or the nodes are restarted.

` + adminHelp,
		Example: "  hubrelay accounts erase acme --yes",
		Args:    exactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !confirmed {
				return NewUsageError(cmd, errors.New("the deletion cannot be undone: confirm with --yes"))
			}
			client, err := f.newClient(std)
			if err != nil {
				return err
			}
			var answer struct{ Data json.RawMessage }
			path := "/api/accounts/" + url.PathEscape(args[0]) + "/erase"
			if err := client.post(cmd.Context(), path, nil, &answer); err != nil {
				return err
			}
			if f.asJSON {
				return printRaw(std, answer.Data)
			}
			var r struct {
				Log, Queued, Scheduled int
				DeadLetters            int `json:"dead_letters"`
				Shared                 int `json:"shared_dead_letters"`
			}
			if err := decodeData(answer.Data, &r); err != nil {
				return err
			}
			text := fmt.Sprintf("deleted %d entries of the log, %d queued and %d scheduled deliveries, %d dead letters",
				r.Log, r.Queued, r.Scheduled, r.DeadLetters)
			if r.Shared > 0 {
				text += fmt.Sprintf("; %d dead letters were kept, because they also contain notifications of other "+
					"accounts", r.Shared)
			}
			_, err = fmt.Fprintln(std.Out, text)
			return err
		},
	}
	cmd.Flags().BoolVar(&confirmed, "yes", false, "confirm the deletion")
	f.register(cmd, std)
	return cmd
}

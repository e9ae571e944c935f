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
		Short: "Delete the events of an account from a running daemon",
		Long: `Deletes the events of an account: from the log, the queues, open digests and scheduled retries of all sinks,
the dead letters, and the quarantine of the inbox. It waits until the embedded Redis has rewritten its file. Then it
prints what it cannot delete. This cannot be undone. Revoke the keys of the account first. Otherwise new
events may arrive.

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
				Quarantine             int
				Remaining              []string
			}
			if err := decodeData(answer.Data, &r); err != nil {
				return err
			}
			text := fmt.Sprintf("deleted %d entries of the log, %d queued and %d scheduled deliveries, %d dead letters, "+
				"%d entries of the quarantine", r.Log, r.Queued, r.Scheduled, r.DeadLetters, r.Quarantine)
			if r.Shared > 0 {
				text += fmt.Sprintf("; %d dead letters were kept, because they also contain events of other "+
					"accounts", r.Shared)
			}
			for i, remaining := range r.Remaining {
				if i == 0 {
					text += "\nnot deleted:"
				}
				text += "\n- " + term.Sanitize(remaining)
			}
			_, err = fmt.Fprintln(std.Out, text)
			return err
		},
	}
	cmd.Flags().BoolVar(&confirmed, "yes", false, "confirm the deletion")
	f.register(cmd, std)
	return cmd
}

package admincli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

func newAccounts(std term.Streams) *cobra.Command {
	return command.NewGroup("accounts", "Delete the events of an account", newAccountsErase(std))
}

func newAccountsErase(std term.Streams) *cobra.Command {
	var f adminFlags
	var confirmed bool
	cmd := &cobra.Command{
		Use:   "erase ACCOUNT",
		Short: "Delete the events of an account from a running relay",
		Long: `Deletes the events of an account: from the log, the queues, open digests and scheduled retries of all sinks,
the dead letters, and the quarantine. It waits until the embedded Redis has rewritten its file. Then it
prints what it cannot delete. This cannot be undone. Revoke the keys of the account first. Otherwise new
events may arrive. If the command is interrupted, repeat it.

` + adminHelp,
		Example: "  hubrelay accounts erase acme --yes",
		Args:    command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !confirmed {
				return command.NewUsageError(cmd, errors.New("the deletion cannot be undone: confirm with --yes"))
			}
			return callAndPrint(cmd.Context(), std, &f, adminapi.EraseAccount(), adminapi.Empty{},
				func(r adminapi.EraseResult) error { return printErased(std, r) }, args[0])
		},
	}
	cmd.Flags().BoolVarP(&confirmed, "yes", "y", false, "confirm the deletion")
	f.register(cmd, std)
	return cmd
}

func printErased(std term.Streams, r adminapi.EraseResult) error {
	text := fmt.Sprintf("deleted %d entries of the inbox and %d of the log, %d waiting and %d retrying deliveries, "+
		"%d dead letters, %d entries of the quarantine, %d records of the history", r.Inbox, r.Log, r.Waiting, r.Retrying,
		r.DeadLetters, r.Quarantine, r.History)
	if r.SharedDeadLetters > 0 {
		text += fmt.Sprintf("; %d dead letters were kept, because they also contain events of other accounts",
			r.SharedDeadLetters)
	}
	for i, remaining := range r.Remaining {
		if i == 0 {
			text += "\nnot deleted:"
		}
		text += "\n- " + term.Sanitize(remaining)
	}
	_, err := fmt.Fprintln(std.Out, text)
	return err
}

package admincli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
)

// NewJobsCancel returns the command that cancels a job.
func NewJobsCancel(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "cancel JOB",
		Short: "Cancel a job, and roll it back if it is running",
		Long: `Cancels a migration. A job that has not started ends at once, and nothing changes. The driver of a running one
stops and moves the instance back to its server. If it can no longer go back, it completes the migration instead.
The job stays "running" until then, also while the server of the instance is unreachable. A job that was canceled or
rolled back has the state "error".

` + adminHelp,
		Example: "  hubrelay jobs cancel 019aa0c2f4e17b3c00000001",
		Args:    command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callAndPrint(cmd.Context(), std, &f, adminapi.CancelJob(), adminapi.Empty{}, func(j adminapi.Job) error {
				text := "is being canceled; see 'hubrelay jobs show " + j.ID + "'"
				switch state := j.State.Current; {
				case state == relay.JobCompleted:
					text = "was completed before it could be rolled back"
				case state.IsFinal() && j.Events.Started == nil:
					text = "was canceled before it started; nothing was changed"
				case state.IsFinal():
					text = "was rolled back"
				}
				_, err := fmt.Fprintln(std.Out, term.Sanitize("job "+j.ID+" "+text))
				return err
			}, args[0])
		},
	}
	f.register(cmd, std)
	return cmd
}

package admincli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// NewJobsCancel returns the command that cancels a job.
func NewJobsCancel(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "cancel JOB",
		Short: "Cancel a job, and roll it back if it is running",
		Long: `Cancels a migration. A job that is not running yet ends at once, and nothing was changed. A running one is rolled
back: the driver stops what it does, and moves the instance back to its server. If the instance already runs on the
destination and nothing is left on the source, the driver completes the migration instead. The state of a canceled
job is "error".`,
		Example: "  hubrelay jobs cancel 019aa0c2f4e17b3c00000001",
		Args:    command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callAndPrint(cmd.Context(), std, &f, adminapi.CancelJob(), adminapi.Empty{}, func(j adminapi.Job) error {
				text := "canceled before it started; nothing was changed"
				if !j.State.Current.IsFinal() {
					text = "is being rolled back; see hubrelay jobs show " + j.ID
				}
				_, err := fmt.Fprintln(std.Out, term.Sanitize("job "+j.ID+" "+text))
				return err
			}, args[0])
		},
	}
	f.register(cmd, std)
	return cmd
}

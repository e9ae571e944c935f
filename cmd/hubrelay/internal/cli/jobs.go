package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/admincli"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay"
)

func newJobs(std term.Streams) *cobra.Command {
	cmd := command.NewGroup("jobs", "Show and cancel migration jobs", newJobsShow(std), newJobsList(std), admincli.NewJobsCancel(std))
	cmd.Long = `A job runs a migration. It is kept for 30 days after its end, or until the instance has 100 newer jobs. Any key of
its hub can read it. Operators cancel it through the admin API.`
	return cmd
}

func newJobsShow(std term.Streams) *cobra.Command {
	var r relayFlags
	var output command.Output
	var wait bool
	cmd := &cobra.Command{
		Use:   "show JOB",
		Short: "Show a job and its progress",
		Long: `Shows a migration of an instance: its state, its steps with their times, and the error if it failed. 'hubrelay migrate' prints
the ID of the job that it starts.`,
		Example: `  hubrelay jobs show 019aa0c2f4e17b3c00000001
  hubrelay jobs show 019aa0c2f4e17b3c00000001 --wait`,
		Args: command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if wait {
				return waitForJob(cmd.Context(), std, r.newClient(), args[0], &output)
			}
			j, err := r.newClient().Job(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return printJob(std, &output, &j)
		},
	}
	r.register(cmd, std)
	cmd.Flags().BoolVar(&wait, "wait", false,
		"show the progress until the job ends, and exit with 1 unless the instance has moved")
	output.Register(cmd.Flags())
	return cmd
}

func newJobsList(std term.Streams) *cobra.Command {
	var r relayFlags
	var output command.Output
	cmd := &cobra.Command{
		Use:   "list CONTAINER INSTANCE",
		Short: "List the jobs of an instance, newest first",
		Long: `Prints the IDs of the jobs that have migrated an instance of a container, or still do, one per line, the newest first.
'hubrelay jobs show' prints one. Both use the public API, so they need an API key.`,
		Example: "  hubrelay jobs list web web-1",
		Args:    command.ExactNamedArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := r.newClient().Jobs(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			return printJobIDs(std, &output, ids)
		},
	}
	r.register(cmd, std)
	output.Register(cmd.Flags())
	return cmd
}

func printJobIDs(std term.Streams, o *command.Output, ids []string) error {
	if len(ids) == 0 && o.IsTable() {
		_, err := fmt.Fprintln(std.Err, "no jobs of this instance") // not to the output, which scripts read
		return err
	}
	list := o.NewList(std.Out)
	for _, id := range ids {
		var err error
		if o.IsTable() {
			_, err = fmt.Fprintln(std.Out, term.Sanitize(id))
		} else {
			err = list.Write(jobID{ID: id})
		}
		if err != nil {
			return err
		}
	}
	return list.Close()
}

func printJob(std term.Streams, o *command.Output, j *relay.Job) error {
	if !o.IsTable() {
		return o.Print(std.Out, j)
	}
	paint := term.NewPalette(std.Out, std.Env)
	part := func(name, value string) {
		if value != "" {
			_, _ = fmt.Fprintf(std.Out, "%s %s\n", paint.Dim(fmt.Sprintf("%-10s", name)), term.Sanitize(value))
		}
	}
	at := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	part("job", j.ID)
	part("caption", j.Caption)
	part("hub", j.HubID)
	part("state", string(j.State.Current))
	part("error", j.State.Error.String())
	part("queued", at(j.Events.Queued))
	part("started", at(j.Events.Started))
	part("completed", at(j.Events.Completed))
	if len(j.Tasks) == 0 {
		return nil
	}
	_, _ = fmt.Fprintln(std.Out)
	rows := make([][]string, len(j.Tasks))
	for i, t := range j.Tasks {
		amount := ""
		if t.Total > 0 {
			amount = term.FormatBytes(t.Bytes) + " of " + term.FormatBytes(t.Total)
		}
		rows[i] = []string{term.Sanitize(t.Caption), term.Sanitize(string(t.State.Current)), strconv.Itoa(t.Progress) +
			"%", amount}
	}
	return term.PrintTable(std.Out, paint, []term.Column{
		{Title: "STEP"},
		{Title: "STATE"},
		{Title: "DONE", Right: true},
		{Title: "BYTES"},
	}, rows)
}

package admincli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
)

// JobsReader reads jobs through the admin API, for commands that also use the public one.
type JobsReader struct {
	flags  adminFlags
	States []string
}

// RegisterConnection registers the flags that select the running relay, and the PreRunE that checks them.
func (r *JobsReader) RegisterConnection(cmd *cobra.Command, std term.Streams) {
	r.flags.registerConnection(cmd, std)
}

// IsSelected reports whether the command has a flag that selects a running relay.
func (r *JobsReader) IsSelected(cmd *cobra.Command) bool {
	return cmd.Flags().Changed("admin") || cmd.Flags().Changed("config")
}

// PrintList prints the jobs of a hub, or of all hubs, the newest first.
func (r *JobsReader) PrintList(ctx context.Context, std term.Streams, o *command.Output, hub string) error {
	c, err := r.flags.connect(std)
	if err != nil {
		return err
	}
	return printPages(std, o, func(visit func([]adminapi.Job) error) error {
		return forEachPage(ctx, c, adminapi.ListJobs(), func(p adminapi.PageRequest) adminapi.ListJobsRequest {
			return adminapi.ListJobsRequest{HubID: hub, States: r.States, PageRequest: p}
		}, visit)
	}, func(list []adminapi.Job) error { return printJobs(std, list) }, "no jobs")
}

func printJobs(std term.Streams, list []adminapi.Job) error {
	rows := make([][]string, len(list))
	for i := range list {
		j := &list[i]
		rows[i] = []string{
			term.Sanitize(j.ID), term.Sanitize(string(j.State.Current)), term.FormatAgo(j.State.Changed),
			term.Sanitize(j.InstanceID), term.Sanitize(j.SourceServerID), term.Sanitize(j.DestinationServerID), term.Sanitize(j.HubID),
			term.Sanitize(j.ContainerID), term.Sanitize(j.State.Error.String()),
		}
	}
	return term.PrintTableWithin(std.Out, term.NewPalette(std.Out, std.Env), term.Width(std.Out), []term.Column{
		{Title: "JOB"},
		{Title: "STATE"},
		{Title: "STATE AGE", Right: true},
		{Title: "INSTANCE", MaxWidth: 24},
		{Title: "FROM", MaxWidth: 24},
		{Title: "TO", MaxWidth: 24},
		{Title: "HUB", MaxWidth: 24, DropOrder: 1},
		{Title: "CONTAINER", MaxWidth: 24, DropOrder: 2},
		{Title: "ERROR", MinWidth: 20, DropOrder: 3},
	}, rows)
}

// Show returns a job.
func (r *JobsReader) Show(ctx context.Context, std term.Streams, id string) (adminapi.Job, error) {
	return connectAndCall(ctx, std, &r.flags, adminapi.ShowJob(), adminapi.Empty{}, id)
}

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
			j, err := connectAndCall(cmd.Context(), std, &f, adminapi.CancelJob(), adminapi.Empty{}, args[0])
			if err != nil {
				return err
			}
			text := "is being canceled; see 'hubrelay jobs show " + j.ID + "'"
			switch state := j.State.Current; {
			case state == relay.JobCompleted:
				err = errors.New(term.Sanitize("job " + j.ID + " was completed before it could be rolled back"))
			case state.IsFinal() && j.Events.Started == nil:
				text = "was canceled before it started; nothing was changed"
			case state.IsFinal():
				text = "was rolled back"
			}
			switch {
			case !f.IsTable():
				err = errors.Join(err, f.Print(std.Out, j))
			case err == nil:
				_, err = fmt.Fprintln(std.Out, term.Sanitize("job "+j.ID+" "+text))
			}
			return err
		},
	}
	f.register(cmd, std)
	return cmd
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

// jobTopic is the topic of changes to a job and to its steps.
const jobTopic = "job.state.changed"

// refreshInterval is the interval between requests for a job while the stream is connected. The stream can miss
// changes during a reconnect.
const refreshInterval = 10 * time.Second

// pollInterval is the interval between requests if the stream is not available, for example with a proxy that does
// not support websockets.
const pollInterval = time.Second

func newMigrate(std term.Streams) *cobra.Command {
	var r relayFlags
	var m client.Migration
	var output command.Output
	var wait bool
	cmd := &cobra.Command{
		Use:   "migrate CONTAINER INSTANCE --to SERVER",
		Short: "Move a container instance to another server of its cluster",
		Long: `Requests a move of an instance to another server of the same cluster and prints the ID of the job. The
key needs the capability containers-instances-migrate. With --wait it shows the progress until the job ends, and exits
with 1 unless the instance has moved. An interrupt does not stop the job; see 'hubrelay jobs show'.`,
		Example: `  hubrelay migrate web web-1 --to server-b --wait
  hubrelay migrate db db-1 --to server-b --copy-volumes --json`,
		Args: command.ExactNamedArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if m.Destination == "" {
				return command.NewUsageError(cmd, errors.New("--to is required: set it to the ID of a server"))
			}
			m.Container, m.Instance = args[0], args[1]
			id, err := r.newClient().Migrate(cmd.Context(), m)
			if err != nil {
				return err
			}
			if !wait {
				return printJobID(std, &output, id)
			}
			return waitForJob(cmd.Context(), std, r.newClient(), id, &output)
		},
	}
	r.register(cmd, std)
	flags := cmd.Flags()
	flags.StringVar(&m.Destination, "to", "", "ID of the server to move the instance to")
	flags.BoolVar(&m.CopyVolumes, "copy-volumes", false,
		"copy the volumes too; otherwise the new volumes are empty and the old ones are kept")
	flags.StringVar(&m.IdempotencyKey, "idempotency-key", "",
		"text that makes it safe to repeat this call within 10 minutes")
	flags.BoolVar(&wait, "wait", false, "show the progress until the job ends")
	output.Register(flags)
	return cmd
}

// jobID is the output for programs about a job, without its state.
type jobID struct {
	ID string `json:"job_id"`
}

func printJobID(std term.Streams, o *command.Output, id string) error {
	if !o.IsTable() {
		return o.Print(std.Out, jobID{ID: id})
	}
	_, err := fmt.Fprintln(std.Out, term.Sanitize(id))
	return err
}

// waitForJob shows the progress of a job until it ends.
func waitForJob(ctx context.Context, std term.Streams, c *client.Client, id string, o *command.Output) error {
	if o.IsTable() {
		if err := printJobID(std, o, id); err != nil {
			return err
		}
	}
	show := newJobProgress(std)
	j, err := followJob(ctx, c, id, show.show)
	show.clearBar()
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted: the job continues; see 'hubrelay jobs show %s --wait'", term.Sanitize(id))
	case err != nil:
		return err
	}
	if !o.IsTable() {
		if err := printJob(std, o, &j); err != nil {
			return err
		}
	}
	if j.State.Current != relay.JobCompleted {
		return fmt.Errorf("the instance was not moved (%s): %s", term.Sanitize(string(j.State.Current)),
			term.Sanitize(j.State.Error.String()))
	}
	if !o.IsTable() {
		return nil
	}
	_, err = fmt.Fprintln(std.Out, "completed")
	return err
}

// followJob calls show for each change of a job, and returns the job when it has ended. The stream sends most
// changes. followJob also requests the job when the stream connects, when the state changes, and periodically.
func followJob(ctx context.Context, c *client.Client, id string, show func(relay.Job)) (relay.Job, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	refresh := make(chan struct{}, 1) // contains an element if the job must be requested
	requestRefresh := func() {
		select {
		case refresh <- struct{}{}:
		default:
		}
	}
	requestRefresh()
	tasks, failed := make(chan relay.JobTask, 16), make(chan struct{}, 1)
	go func() {
		watchJob(ctx, c, id, requestRefresh, tasks)
		failed <- struct{}{}
	}()
	tick := time.NewTicker(refreshInterval)
	defer tick.Stop()
	var j relay.Job
	for {
		select {
		case <-ctx.Done():
			return j, ctx.Err()
		case <-failed:
			tick.Reset(pollInterval)
			continue
		case t := <-tasks:
			for i := range j.Tasks {
				if j.Tasks[i].ID == t.ID && !isOlder(t, j.Tasks[i]) {
					j.Tasks[i] = t
				}
			}
		case <-tick.C:
			requestRefresh()
			continue
		case <-refresh:
			now, err := c.Job(ctx, id)
			switch {
			case ctx.Err() != nil:
				return j, errors.Join(err, ctx.Err())
			case isRejected(err):
				return j, err
			case err != nil:
				continue // requested again at the next tick or reconnect
			}
			j = now
		}
		if show(j); j.State.Current.IsFinal() {
			return j, nil
		}
	}
}

// isOlder reports whether t is an earlier state of the step than known. The stream can send a change after a
// request has returned it.
func isOlder(t, known relay.JobTask) bool {
	changed, seen := t.State.Changed, known.State.Changed
	switch {
	case seen == nil:
		return false
	case changed == nil:
		return true
	}
	if !changed.Equal(*seen) {
		return changed.Before(*seen)
	}
	if t.State.Current != known.State.Current {
		return known.State.Current.IsFinal()
	}
	return t.Progress < known.Progress
}

// isRejected reports whether err is a response that a retry would not change.
func isRejected(err error) bool {
	var response *client.Error
	return errors.As(err, &response) && response.Status/100 == 4 &&
		response.Status != http.StatusRequestTimeout && response.Status != http.StatusTooManyRequests
}

// watchJob reads the stream until ctx ends or the relay rejects the stream. The caller gets the reason when it
// requests the job.
func watchJob(ctx context.Context, c *client.Client, id string, changed func(), tasks chan<- relay.JobTask) {
	quiet := *c
	quiet.Log = slog.New(slog.DiscardHandler)
	for n, err := range quiet.Listen(ctx, client.ListenOptions{Topics: []string{jobTopic}, OnConnected: changed}) {
		if err != nil {
			return
		}
		e := term.ParseJobEvent(n)
		if e == nil || e.Object.JobID != id {
			continue
		}
		if e.Object.Task == nil {
			changed()
			continue
		}
		select {
		case tasks <- *e.Object.Task:
		case <-ctx.Done():
		}
	}
}

// jobProgress shows the progress of a job: a bar for the current step on a terminal, otherwise a line per change.
type jobProgress struct {
	std           term.Streams
	bar           bool
	last          string
	finishedSteps int // steps whose end was printed
	drawn         bool
}

func newJobProgress(std term.Streams) *jobProgress {
	return &jobProgress{std: std, bar: term.IsTerminal(std.Err)}
}

func (p *jobProgress) show(j relay.Job) {
	text, line := describeJob(j)
	if !p.bar {
		for ; p.finishedSteps < len(j.Tasks) &&
			j.Tasks[p.finishedSteps].State.Current == relay.JobCompleted; p.finishedSteps++ {
			p.printLine(taskSummary(j.Tasks[p.finishedSteps])) // also for a step that was never seen running
		}
		if !j.State.Current.IsFinal() { // the command prints the result
			p.printLine(line)
		}
		return
	}
	p.drawn = true
	_, _ = fmt.Fprintf(p.std.Err, "\r\x1b[K%s", text)
}

func (p *jobProgress) printLine(line string) {
	if line != "" && line != p.last {
		_, _ = fmt.Fprintln(p.std.Err, line)
		p.last = line
	}
}

func (p *jobProgress) clearBar() {
	if p.drawn {
		_, _ = fmt.Fprint(p.std.Err, "\r\x1b[K")
	}
}

// describeJob returns the progress of a job: text has all details for a bar, line has only the important ones.
func describeJob(j relay.Job) (text, line string) {
	state := term.Sanitize(string(j.State.Current))
	if j.State.Current != relay.JobRunning {
		return state, state
	}
	line = state
	done := 0
	for _, t := range j.Tasks {
		switch t.State.Current {
		case relay.JobCompleted:
			done++
			line = taskSummary(t)
		case relay.JobRunning:
			line = term.Sanitize(t.Caption)
			text = fmt.Sprintf("%d/%d %s", done+1, len(j.Tasks), line)
			if t.Total > 0 {
				text += fmt.Sprintf(" %s %3d%%  %s of %s", term.ProgressBar(float64(t.Progress)/100), t.Progress,
					term.FormatBytes(t.Bytes), term.FormatBytes(t.Total))
			}
		}
	}
	if text == "" {
		text = fmt.Sprintf("%d/%d %s", done, len(j.Tasks), line)
	}
	if j.State.Error != nil {
		problem := "  problem: " + term.Sanitize(j.State.Error.String())
		return text + relay.Truncate(problem, 60), line + problem
	}
	return text, line
}

func taskSummary(t relay.JobTask) string { return term.Sanitize(t.Caption) + ": done" }

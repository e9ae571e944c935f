package migration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

// errCanceled reports that an operator has canceled the job. Clients read this text.
var errCanceled = errors.New("the migration was canceled by an operator")

// CancelJob cancels a job. A job that waits ends at once, and nothing was changed. A running one is rolled back by its
// driver, which takes some time. If nothing is left on the source, the driver completes the migration instead.
func (a *AdminJobs) CancelJob(ctx context.Context, id string) (adminapi.Job, error) {
	s, err := a.requireService()
	if err != nil {
		return adminapi.Job{}, err
	}
	j, err := s.findJob(ctx, id)
	if err != nil {
		return adminapi.Job{}, err
	}
	e := (&eventBuilder{job: &j.jobSpec, newID: s.newID}).addJobState(topicJobChanged, relay.JobError, errCanceled.Error(), j.Source)
	if e.err != nil {
		return adminapi.Job{}, e.err
	}
	before, err := s.store.cancelJob(ctx, j, e.notifications)
	if err != nil {
		return adminapi.Job{}, err
	}
	switch {
	case before == "":
		return adminapi.Job{}, errNoJob(id)
	case before.IsFinal():
		return adminapi.Job{}, relay.NewError(relay.CodeInvalidState, fmt.Sprintf("the job has ended (%s), so it cannot be canceled", before)).
			WithExtra("state", string(before))
	case before != relay.JobRunning:
		a.module.worker.o.Observer.JobEnded(relay.JobError, time.Since(j.Queued))
	}
	return a.ShowJob(ctx, id)
}

// cancelJob cancels a job. It returns its state before, or "" if it is missing. The events are those of a job that waits.
func (s *jobStore) cancelJob(ctx context.Context, j *job, events []relay.Notification) (before relay.JobState, err error) {
	p := s.keys.Partition(j.Hub)
	keys := []string{s.keys.job(j.ID, p), eventlog.Key(s.keys.Space, p), s.keys.jobs(p), s.keys.activeMigrations(p)}
	args := []any{string(relay.JobError), errCanceled.Error(), jobTTL.Milliseconds()}
	state, err := cancelScript.Run(ctx, s.client, keys, appendEvents(args, events)...).Text()
	if err != nil {
		return "", fmt.Errorf("cancel a job: %w", err)
	}
	return relay.JobState(state), nil
}

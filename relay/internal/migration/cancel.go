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
// driver, which takes some time. If the driver can no longer go back, it completes the migration instead. Canceling a
// canceled job again has no effect.
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
	before, waited, err := s.store.cancelJob(ctx, j, e.notifications)
	if err != nil {
		return adminapi.Job{}, err
	}
	switch before {
	case "":
		return adminapi.Job{}, newNoJobError(id)
	case relay.JobQueued, relay.JobScheduled:
		a.module.worker.o.Observer.JobEnded(relay.JobError, waited)
		a.module.log.Info("migration ended", "job_id", j.ID, "instance_id", j.Instance, "state", string(relay.JobError),
			"error", errCanceled.Error(), "source_server_id", j.Source, "destination_server_id", j.Destination)
	}
	if current, err := s.findJob(ctx, id); err == nil {
		j = current
	} else {
		j.canceled = true // it is stored, although it cannot be read now
	}
	if before.IsFinal() && !j.canceled {
		return adminapi.Job{}, relay.NewError(relay.CodeInvalidState, fmt.Sprintf("the job has ended (%s), so it cannot be canceled", before)).
			WithExtra("state", string(before))
	}
	return j.toAdminView(), nil
}

// cancelJob cancels a job. It returns its state before, or "" if it is missing, and the time since its request. The events are
// stored if the job waits.
func (s *jobStore) cancelJob(
	ctx context.Context, j *job, events []relay.Notification,
) (before relay.JobState, waited time.Duration, err error) {
	p := s.keys.Partition(j.Hub)
	keys := []string{s.keys.job(j.ID, p), eventlog.Key(s.keys.Space, p), s.keys.jobs(p), s.keys.activeMigrations(p)}
	args := []any{string(relay.JobError), errCanceled.Error(), jobTTL.Milliseconds()}
	reply, err := cancelScript.Run(ctx, s.client, keys, appendEvents(args, events)...).Slice()
	if err != nil {
		return "", 0, fmt.Errorf("cancel a job: %w", err)
	}
	state, isText := reply[0].(string)
	ms, isNumber := reply[1].(int64)
	if !isText || !isNumber {
		return "", 0, errors.New("cancel a job: unexpected response of Redis")
	}
	return relay.JobState(state), time.Duration(ms) * time.Millisecond, nil
}

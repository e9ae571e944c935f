package migration

import (
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// toView converts the job for the public API.
func (j *job) toView() relay.Job {
	v := relay.Job{ID: j.ID, HubID: j.Hub, Caption: j.Caption(), Tasks: make([]relay.JobTask, 0, len(j.Steps))}
	v.State.Current, v.State.Changed, v.State.Error = j.State, j.Changed, relay.NewJobFailure(j.Error)
	v.Events.Queued, v.Events.Started, v.Events.Completed = timePtr(j.Queued), timePtr(j.Started), timePtr(j.Completed)
	current := j.currentStep()
	for i, s := range j.Steps {
		v.Tasks = append(v.Tasks, j.taskView(s, i == current))
	}
	return v
}

// currentStep returns the index of the step that is running or has failed, or -1.
func (j *job) currentStep() int {
	if j.State != relay.JobRunning && j.State != relay.JobError {
		return -1
	}
	current := -1
	for i, s := range j.Steps {
		if p, started := j.Progress[s.ID]; started && !p.Completed {
			current = i
		}
	}
	return current
}

func (j *job) taskView(s relay.MigrationStep, current bool) relay.JobTask {
	t := relay.JobTask{ID: s.ID, Caption: s.Caption}
	p, started := j.Progress[s.ID]
	t.State.Current, t.Bytes, t.Total = relay.JobNew, p.Bytes, p.Total
	if started {
		t.State.Current, t.State.Changed, t.Progress = relay.JobRunning, timePtr(p.Time), progressPercent(p)
	}
	switch {
	case p.Completed, j.State == relay.JobCompleted: // The report of the last step may be missing.
		t.State.Current, t.Progress = relay.JobCompleted, 100
	case started && j.State.IsFinal():
		t.State.Current = relay.JobError
	}
	if current {
		t.Error = relay.NewJobFailure(j.Error)
	}
	return t
}

// progressPercent returns the progress of a step in percent. It returns 100 only for a completed step.
func progressPercent(p relay.Progress) int {
	switch {
	case p.Completed:
		return 100
	case p.Total <= 0 || p.Bytes <= 0:
		return 0
	}
	return min(99, int(100*float64(p.Bytes)/float64(p.Total)))
}

func timePtr(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

package relay

import "time"

// JobState is what a job is doing.
type JobState string

// The states of a job, in their order; the last three are final.
const (
	JobNew       JobState = "new"
	JobQueued    JobState = "queued"
	JobScheduled JobState = "scheduled" // a worker has it, and it waits for its servers' turn
	JobRunning   JobState = "running"
	JobCompleted JobState = "completed"
	JobError     JobState = "error"
	JobExpired   JobState = "expired" // its turn did not come in time; nothing was touched
)

// IsFinal tells whether nothing follows.
func (s JobState) IsFinal() bool { return s == JobCompleted || s == JobError || s == JobExpired }

// Job is a job as GET /v1/jobs/{job_id} shows it.
type Job struct {
	ID      string `json:"id"`
	HubID   string `json:"hub_id"`
	Caption string `json:"caption"`
	State   struct {
		Current JobState  `json:"current"`
		Changed time.Time `json:"changed"`
		// Error is why the job has failed; of one that goes on, what went wrong last.
		Error string `json:"error"`
	} `json:"state"`
	// Events are when something happened, nil before.
	Events struct {
		Queued    *time.Time `json:"queued"`
		Started   *time.Time `json:"started"`
		Completed *time.Time `json:"completed"`
	} `json:"events"`
	Tasks []JobTask `json:"tasks"`
}

// JobTask is a step of a job.
type JobTask struct {
	ID      string `json:"id"`
	Caption string `json:"caption"`
	State   struct {
		Current JobState   `json:"current"`
		Changed *time.Time `json:"changed"`
	} `json:"state"`
	Error string `json:"error"`
	// Progress counts from 0 to 100. Bytes and Total are there where there is something to count.
	Progress int   `json:"progress"`
	Bytes    int64 `json:"bytes,omitempty"`
	Total    int64 `json:"total,omitempty"`
}

// TaskDescriptor is a job as the answer to its request and the list of an instance's jobs show it (spec.md, "Task
// descriptor").
type TaskDescriptor struct {
	Action string `json:"action"`
	JobID  string `json:"job_id"`
}

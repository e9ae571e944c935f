package relay

import "time"

// JobState is the state of a migration job.
type JobState string

// The states of a job, in their order. The last three are final.
const (
	JobNew       JobState = "new"
	JobQueued    JobState = "queued"
	JobScheduled JobState = "scheduled" // waits for its two servers
	JobRunning   JobState = "running"
	JobCompleted JobState = "completed"
	JobError     JobState = "error"
	JobExpired   JobState = "expired" // waited too long for its servers; nothing was changed
)

// IsFinal reports whether s is completed, error or expired.
func (s JobState) IsFinal() bool { return s == JobCompleted || s == JobError || s == JobExpired }

// Job is a migration job as returned by GET /v1/jobs/{job_id}.
type Job struct {
	ID      string `json:"id"`
	HubID   string `json:"hub_id"`
	Caption string `json:"caption"`
	State   struct {
		Current JobState  `json:"current"`
		Changed time.Time `json:"changed"`
		// Error is the reason of a failed job, or the last problem of a running one. It may be nil.
		Error *JobFailure `json:"error"`
	} `json:"state"`
	// Events are the times of state changes. An event that has not happened is nil.
	Events struct {
		Queued    *time.Time `json:"queued"`
		Started   *time.Time `json:"started"`
		Completed *time.Time `json:"completed"`
	} `json:"events"`
	Tasks []JobTask `json:"tasks"`
}

// JobTask is one step of a job.
type JobTask struct {
	ID      string `json:"id"`
	Caption string `json:"caption"`
	State   struct {
		Current JobState   `json:"current"`
		Changed *time.Time `json:"changed"`
	} `json:"state"`
	// Error is the reason of a failed task, or nil.
	Error *JobFailure `json:"error"`
	// Progress is a percentage from 0 to 100. Bytes and Total are set if the step counts bytes.
	Progress int   `json:"progress"`
	Bytes    int64 `json:"bytes,omitempty"`
	Total    int64 `json:"total,omitempty"`
}

// JobFailure is the reason why a job or a task failed.
type JobFailure struct {
	Message string `json:"message"`
}

// NewJobFailure returns a JobFailure with the message, or nil if the message is empty.
func NewJobFailure(message string) *JobFailure {
	if message == "" {
		return nil
	}
	return &JobFailure{Message: message}
}

// String returns the message. It returns "" if f is nil.
func (f *JobFailure) String() string {
	if f == nil {
		return ""
	}
	return f.Message
}

// TaskDescriptor is the short form of a job: the response to its request, and an entry in the list of an
// instance's jobs (docs/specification.md, "Task descriptor").
type TaskDescriptor struct {
	Action string `json:"action"`
	JobID  string `json:"job_id"`
}

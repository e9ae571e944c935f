package term

import (
	"encoding/json"
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
)

// JobEvent contains the members of notifications about jobs and their instances that docs/specification.md does not define.
type JobEvent struct {
	Object struct {
		JobID       string         `json:"job_id"`
		InstanceID  string         `json:"instance_id"`
		Server      string         `json:"server_id"`
		Destination string         `json:"destination_server_id"`
		Task        *relay.JobTask `json:"task"`
	} `json:"object"`
}

// ParseJobEvent returns nil if n is not about a job. Any producer can publish these topics with other members.
func ParseJobEvent(n relay.Notification) *JobEvent {
	var e JobEvent
	if json.Unmarshal(n.Data, &e) != nil || e.Object.JobID == "" {
		return nil
	}
	return &e
}

// StepText returns the progress of the step in the event. It returns "" if the event has no step.
func (e *JobEvent) StepText() string {
	t := e.Object.Task
	switch {
	case t == nil:
		return ""
	case t.State.Current == relay.JobCompleted:
		return t.Caption + ": done"
	case t.Total > 0:
		return fmt.Sprintf("%s: %d%%", t.Caption, t.Progress)
	}
	return t.Caption
}

// Route returns the current server of the instance, and its destination if it differs.
func (e *JobEvent) Route() string {
	if to := e.Object.Destination; to != "" && to != e.Object.Server {
		return e.Object.Server + " → " + to
	}
	return e.Object.Server
}

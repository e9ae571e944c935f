package term

import (
	"encoding/json"
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
)

// jobEvent is what the relay's notifications of jobs and of their instances say beyond spec.md.
type jobEvent struct {
	Object struct {
		JobID       string         `json:"job_id"`
		InstanceID  string         `json:"instance_id"`
		Server      string         `json:"server_id"`
		Destination string         `json:"destination_server_id"`
		Task        *relay.JobTask `json:"task"`
	} `json:"object"`
}

// ParseJobEvent returns nil for what tells of no job. Anybody may publish such topics, and say less or something else.
func ParseJobEvent(n relay.Notification) *jobEvent {
	var e jobEvent
	if json.Unmarshal(n.Data, &e) != nil || e.Object.JobID == "" {
		return nil
	}
	return &e
}

// StepText says how far the step is that the event tells of, if it does.
func (e *jobEvent) StepText() string {
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

// Route says where the instance is, and where it is to go.
func (e *jobEvent) Route() string {
	if to := e.Object.Destination; to != "" && to != e.Object.Server {
		return e.Object.Server + " → " + to
	}
	return e.Object.Server
}

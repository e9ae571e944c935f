package migration

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
)

// The topics that tell of jobs and instances; all are spec.md's.
const (
	topicJobCreated   = "job.created"
	topicJobChanged   = "job.state.changed"
	topicInstance     = "container.instance.state.changed"
	topicInstanceFail = "container.instance.error"
)

// The states of an instance that are told.
const (
	instanceMigrating = "migrating"
	instanceRunning   = "running"
)

// event is a notification in the form of all others.
type event struct {
	Topic   string          `json:"topic"`
	Object  eventObject     `json:"object"`
	Context relay.Context   `json:"context"`
	Flags   json.RawMessage `json:"flags"`
}

// eventObject says what an event is about. What spec.md does not name comes behind what it does.
type eventObject struct {
	ID       string `json:"id"`
	State    string `json:"state"`
	Error    string `json:"error"`
	Job      string `json:"job_id"`
	Instance string `json:"instance_id"`
	// Server is where the instance is.
	Server      string         `json:"server_id"`
	Destination string         `json:"destination_server_id,omitempty"`
	Task        *relay.JobTask `json:"task,omitempty"`
}

// events makes the notifications of one job.
type events struct {
	of    *order
	newID func() string
	list  []relay.Notification
	err   error
}

func (e *events) add(topic string, object eventObject) *events {
	o := e.of
	if object.ID == "" {
		object.ID = o.ID
	}
	object.Job, object.Instance = o.ID, o.Instance
	what := event{Topic: topic, Object: object, Flags: json.RawMessage("null"), Context: relay.Context{
		HubID: o.Hub, AccountID: o.Account, Environments: []string{}, DNSZones: []string{},
		Clusters: []string{o.Cluster}, Containers: []string{o.Container},
	}}
	if o.Environment != "" {
		what.Context.Environments = []string{o.Environment}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(what); err != nil {
		e.err = fmt.Errorf("make an event of the job %s: %w", o.ID, err)
		return e
	}
	e.list = append(e.list, relay.Notification{
		ID: e.newID(), Topic: topic, Hub: o.Hub, Account: o.Account, Data: bytes.TrimRight(text.Bytes(), "\n"),
	})
	return e
}

// job tells of a job's new state.
func (e *events) job(topic string, state relay.JobState, cause, server string) *events {
	return e.add(topic, eventObject{State: string(state), Error: cause, Server: server, Destination: e.of.Destination})
}

// instance tells of the instance itself.
func (e *events) instance(topic, state, cause, server string) *events {
	return e.add(topic, eventObject{ID: e.of.Instance, State: state, Error: cause, Server: server})
}

// step tells how far a job is that runs.
func (e *events) step(t relay.JobTask) *events {
	return e.add(topicJobChanged, eventObject{State: string(relay.JobRunning), Server: e.of.Source, Destination: e.of.Destination, Task: &t})
}

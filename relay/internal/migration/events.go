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

// eventBuilder makes the notifications of one job.
type eventBuilder struct {
	job           *jobSpec
	newID         func() string
	notifications []relay.Notification
	err           error
}

func (e *eventBuilder) append(topic string, object eventObject) *eventBuilder {
	o := e.job
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
	e.notifications = append(e.notifications, relay.Notification{
		ID: e.newID(), Topic: topic, Hub: o.Hub, Account: o.Account, Data: bytes.TrimRight(text.Bytes(), "\n"),
	})
	return e
}

// addJobState tells of a job's new state.
func (e *eventBuilder) addJobState(topic string, state relay.JobState, cause, server string) *eventBuilder {
	return e.append(topic, eventObject{State: string(state), Error: cause, Server: server, Destination: e.job.Destination})
}

// addInstance tells of the instance itself.
func (e *eventBuilder) addInstance(topic, state, cause, server string) *eventBuilder {
	return e.append(topic, eventObject{ID: e.job.Instance, State: state, Error: cause, Server: server})
}

// addTask tells how far a job is that runs.
func (e *eventBuilder) addTask(t relay.JobTask) *eventBuilder {
	return e.append(topicJobChanged, eventObject{State: string(relay.JobRunning), Server: e.job.Source, Destination: e.job.Destination, Task: &t})
}

package migration

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
)

// Topics of events about jobs and instances, from docs/specification.md.
const (
	topicJobCreated   = "job.created"
	topicJobChanged   = "job.state.changed"
	topicInstance     = "container.instance.state.changed"
	topicInstanceFail = "container.instance.error"
)

// States of an instance in events.
const (
	instanceMigrating = "migrating"
	instanceRunning   = "running"
)

// event is the JSON form of a notification.
type event struct {
	Topic   string          `json:"topic"`
	Object  eventObject     `json:"object"`
	Context relay.Context   `json:"context"`
	Flags   json.RawMessage `json:"flags"`
}

// eventObject is the subject of an event. The members that docs/specification.md does not define come last.
type eventObject struct {
	ID       string `json:"id"`
	State    string `json:"state"`
	Error    string `json:"error"`
	Job      string `json:"job_id"`
	Instance string `json:"instance_id"`
	// Server is the server that the instance is on.
	Server      string         `json:"server_id"`
	Destination string         `json:"destination_server_id,omitempty"`
	Task        *relay.JobTask `json:"task,omitempty"`
}

// eventBuilder creates the notifications of one job.
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
	content := event{Topic: topic, Object: object, Flags: json.RawMessage("null"), Context: relay.Context{
		HubID: o.Hub, AccountID: o.Account, Environments: []string{}, DNSZones: []string{},
		Clusters: []string{o.Cluster}, Containers: []string{o.Container},
	}}
	if o.Environment != "" {
		content.Context.Environments = []string{o.Environment}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(content); err != nil {
		e.err = fmt.Errorf("encode an event of job %s: %w", o.ID, err)
		return e
	}
	e.notifications = append(e.notifications, relay.Notification{
		ID: e.newID(), Topic: topic, Hub: o.Hub, Account: o.Account, Data: bytes.TrimRight(text.Bytes(), "\n"),
	})
	return e
}

// addJobState adds an event about a new state of the job.
func (e *eventBuilder) addJobState(topic string, state relay.JobState, reason, server string) *eventBuilder {
	return e.append(topic, eventObject{
		State: string(state), Error: reason, Server: server, Destination: e.job.Destination,
	})
}

// addInstance adds an event about the instance.
func (e *eventBuilder) addInstance(topic, state, reason, server string) *eventBuilder {
	return e.append(topic, eventObject{ID: e.job.Instance, State: state, Error: reason, Server: server})
}

// addTask adds an event about the progress of a running job.
func (e *eventBuilder) addTask(t relay.JobTask) *eventBuilder {
	return e.append(topicJobChanged, eventObject{
		State: string(relay.JobRunning), Server: e.job.Source, Destination: e.job.Destination,
		Task: &t,
	})
}

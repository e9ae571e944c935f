package slack

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// severity decides the colour. A greater one is more important.
type severity int

const (
	quiet  severity = iota // details were edited
	change                 // something moved to another state
	good                   // something new, or healthy again
	bad                    // an error, or unhealthy
)

// colour is the bar beside the message.
func (s severity) colour() string {
	switch s {
	case bad:
		return "#d72b3f"
	case good:
		return "#2eb67d"
	case change:
		return "#2f81d6"
	default:
		return "#8a8d91"
	}
}

// event is a notification as it is shown.
type event struct {
	relay.Envelope
	id string
	// what says in plain words what happened, without a full stop.
	what string
	data []byte
	// at is when the relay stored the notification, zero where that is not known.
	at       time.Time
	severity severity
	// own is nil but for the relay's own notifications.
	own *operational
	// sample says that nothing happened: a sink is tested.
	sample bool
}

// newEvent never fails: what cannot be read of a notification is left out.
func (r *renderer) newEvent(n relay.Notification) event {
	e := event{id: n.ID, at: n.Stored(), data: n.Data}
	if envelope, err := n.Envelope(); err == nil {
		e.Envelope = envelope
	}
	if n.Topic != "" {
		e.Topic = n.Topic
	}
	if e.Context.HubID == "" {
		e.Context.HubID = n.Hub
	}
	if e.Context.AccountID == "" {
		e.Context.AccountID = n.Account
	}
	e.what = r.meaning(e.Topic)
	if e.Topic == topicHealth && clean(e.Object.State) != "" {
		e.what = "An instance's health check" // its meaning leaves open what the state tells
	}
	e.own = operationalOf(&e)
	e.severity = judge(e.Topic, e.Object)
	if e.sample = isSample(n); e.sample {
		e.severity = quiet
	}
	return e
}

// isSample tells the notification of a test. A producer may use the member for something else, but what it published has a
// place in the log.
func isSample(n relay.Notification) bool {
	var members struct {
		Sample any `json:"sample"`
	}
	return n.Cursor == "" && json.Unmarshal(n.Data, &members) == nil && members.Sample == true
}

// headline is what happened and, where there is one, the state that it led to, or that none of it did.
func (e *event) headline() string {
	if e.sample {
		return "Test: " + e.outcome()
	}
	return e.outcome()
}

func (e *event) outcome() string {
	if e.own != nil {
		return e.own.headline(e)
	}
	switch state := clean(e.Object.State); {
	case state == "":
		return e.what
	case e.Topic == topicHealth:
		return e.what + " says " + state
	default:
		return e.what + ": " + state
	}
}

// topicHealth has a meaning that names both states which it may tell of.
const topicHealth = "container.instance.health.status.changed"

// judge decides by the words of the topic and the object.
func judge(topic string, o relay.Object) severity {
	segments := strings.Split(topic, ".")
	last := segments[len(segments)-1]
	state := strings.ToLower(strings.TrimSpace(o.State))
	switch {
	case last == "error", troubling(topic, state), strings.TrimSpace(o.Error) != "",
		topic == relay.TopicSinkDisabled, topic == relay.TopicDeadLetterCreated:
		return bad
	case last == "created", last == "new", state == "healthy", topic == relay.TopicSinkRecovered:
		return good
	case last == "updated", last == "reconfigured":
		return quiet
	}
	return change
}

// troubling tells whether a state is trouble. The specification names no states but those of health; some others mean
// nothing else where something moved to them by itself.
func troubling(topic, state string) bool {
	switch state {
	case "error", "unhealthy":
		return true
	case "failed", "crashed", "dead", "offline", "degraded":
		return strings.HasSuffix(topic, ".state.changed")
	}
	return false
}

// previousState looks for a member of the object that says which state it left. The specification has none, but members
// that it does not name are kept as they came.
func previousState(data []byte) string {
	var members, object map[string]json.RawMessage // maps, because structs do not tell Object from object
	if json.Unmarshal(data, &members) != nil || json.Unmarshal(members["object"], &object) != nil {
		return ""
	}
	for _, name := range []string{"previous_state", "old_state", "state_before"} {
		var state string
		if json.Unmarshal(object[name], &state) == nil && state != "" {
			return state
		}
	}
	return ""
}

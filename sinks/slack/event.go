package slack

import (
	"encoding/json"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// severity determines the color.
type severity = relay.Severity

const (
	quiet  = relay.SeverityQuiet
	change = relay.SeverityChange
	good   = relay.SeverityGood
	bad    = relay.SeverityBad
)

// severityColor returns the color of the bar next to the message.
func severityColor(s severity) string {
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

// event is a notification in the form for messages.
type event struct {
	relay.Envelope
	id string
	// meaning is a phrase that says what happened.
	meaning string
	data    []byte
	// at is the time at which the relay stored the notification, or zero if unknown.
	at       time.Time
	severity severity
	// operational is nil except for the relay's own notifications.
	operational *operational
	// sample marks a notification that only tests a sink.
	sample bool
}

// newEvent never fails. It omits unreadable parts of a notification.
func (r *renderer) newEvent(n relay.Notification) event {
	e := event{id: n.ID, at: n.StoredAt(), data: n.Data}
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
	e.meaning = r.topicMeaning(e.Topic)
	if e.Topic == topicHealth && cleanLine(e.Object.State) != "" {
		e.meaning = "An instance's health check" // the state contains the result
	}
	e.operational = operationalOf(&e)
	e.severity = relay.SeverityOf(e.Topic, e.Object)
	if e.sample = n.IsSample(); e.sample {
		e.severity = quiet
	}
	return e
}

// headlineText returns the meaning, followed by the new state, or by the information that it is a test.
func (e *event) headlineText() string {
	if e.sample {
		return "Test: " + e.outcomeText()
	}
	return e.outcomeText()
}

func (e *event) outcomeText() string {
	if e.operational != nil {
		return e.operational.headlineText(e)
	}
	switch state := cleanLine(e.Object.State); {
	case state == "":
		return e.meaning
	case e.Topic == topicHealth:
		return e.meaning + " says " + state
	default:
		return e.meaning + ": " + state
	}
}

// topicHealth is a topic whose description already contains both states.
const topicHealth = "container.instance.health.status.changed"

// previousState returns the member of the object with the previous state. The specification does not define it, but
// unknown members are kept.
func previousState(data []byte) string {
	var members, object map[string]json.RawMessage // maps, because struct fields ignore case
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

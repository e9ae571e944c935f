package relay

import (
	"encoding/json"
	"strings"
)

// Severity is how much a person wants to know of a notification. A greater one is more important.
type Severity int

// The severities.
const (
	// SeverityQuiet means that details were edited.
	SeverityQuiet Severity = iota
	// SeverityChange means that something moved to another state.
	SeverityChange
	// SeverityGood is something new, or healthy again.
	SeverityGood
	// SeverityBad is an error, or unhealthy.
	SeverityBad
)

// String is bad, good, change or quiet.
func (s Severity) String() string {
	switch s {
	case SeverityBad:
		return "bad"
	case SeverityGood:
		return "good"
	case SeverityChange:
		return "change"
	default:
		return "quiet"
	}
}

// SeverityOf decides by the words of the topic and the object.
func SeverityOf(topic string, o Object) Severity {
	last := topic[strings.LastIndexByte(topic, '.')+1:]
	state := strings.ToLower(strings.TrimSpace(o.State))
	switch {
	case last == "error", isTroubleState(topic, state), strings.TrimSpace(o.Error) != "",
		topic == TopicSinkDisabled, topic == TopicDeadLetterCreated:
		return SeverityBad
	case last == "created", last == "new", state == "healthy", topic == TopicSinkRecovered:
		return SeverityGood
	case last == "updated", last == "reconfigured":
		return SeverityQuiet
	}
	return SeverityChange
}

// isTroubleState tells whether a state is trouble. The specification names no states but those of health; some others mean
// nothing else where something moved to them by itself.
func isTroubleState(topic, state string) bool {
	switch state {
	case "error", "unhealthy":
		return true
	case "failed", "crashed", "dead", "offline", "degraded":
		return strings.HasSuffix(topic, ".state.changed")
	}
	return false
}

// IsSample tells the notification of a test of a sink. A producer may use the member for something else, but what it
// published has a place in the log.
func (n Notification) IsSample() bool {
	var members struct {
		Sample any `json:"sample"`
	}
	return n.Cursor == "" && json.Unmarshal(n.Data, &members) == nil && members.Sample == true
}

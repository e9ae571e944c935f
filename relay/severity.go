package relay

import (
	"encoding/json"
	"strings"
)

// Severity is the importance of a notification for people. Greater is more important.
type Severity int

// The severities.
const (
	// SeverityQuiet is an edit of details.
	SeverityQuiet Severity = iota
	// SeverityChange is a change of state.
	SeverityChange
	// SeverityGood is something new or recovered.
	SeverityGood
	// SeverityBad is an error or an unhealthy state.
	SeverityBad
)

// String returns "bad", "good", "change" or "quiet".
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

// SeverityOf derives the severity from the topic and from the state and error of the object.
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

// isTroubleState reports whether state means trouble. The specification names only the health states. The other
// states mean trouble only in topics that end with ".state.changed"; in a desired state they may be intended.
func isTroubleState(topic, state string) bool {
	switch state {
	case "error", "unhealthy":
		return true
	case "failed", "crashed", "dead", "offline", "degraded":
		return strings.HasSuffix(topic, ".state.changed")
	}
	return false
}

// IsSample reports whether n was made by a test of a sink. Producers may set the member "sample" too, but a
// published notification has a cursor.
func (n Notification) IsSample() bool {
	var members struct {
		Sample any `json:"sample"`
	}
	return n.Cursor == "" && json.Unmarshal(n.Data, &members) == nil && members.Sample == true
}

package relay

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Trace is the position of a notification in a distributed trace (W3C Trace Context 1). The zero value is no
// trace.
type Trace struct {
	// Parent is the value of the header traceparent, State the value of tracestate. State may be empty.
	Parent string `json:"traceparent"`
	State  string `json:"tracestate"`
}

// maxTraceState is the number of bytes of tracestate that every tracer must propagate. Longer values are dropped
// completely, which the specification allows.
const maxTraceState = 512

// ParseTrace returns the trace of the two headers. It returns the zero value if parent is invalid, and no State if
// state is too long or not a valid header value.
func ParseTrace(parent, state string) Trace {
	if !validParent(parent) {
		return Trace{}
	}
	state = strings.TrimSpace(state)
	if len(state) > maxTraceState || strings.ContainsFunc(state, func(c rune) bool { return c < ' ' || c > '~' }) {
		state = ""
	}
	return Trace{Parent: parent, State: state}
}

// validParent reports whether s has the form version-traceid-parentid-flags, in lower case, with nonzero IDs.
// Versions after 00 may append more fields.
func validParent(s string) bool {
	const zeros = "00000000000000000000000000000000"
	if len(s) < 55 || len(s) > 55 && (s[:2] == "00" || s[55] != '-') || len(s) > maxTraceState {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case i == 2 || i == 35 || i == 52:
			if c != '-' {
				return false
			}
		case i >= 55:
			if c <= ' ' || c > '~' {
				return false
			}
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return false
		}
	}
	return s[:2] != "ff" && s[3:35] != zeros && s[36:52] != zeros[:16]
}

// Trace returns the members traceparent and tracestate of the notification. It returns the zero value if they are
// missing or invalid.
func (n Notification) Trace() Trace {
	if !bytes.Contains(n.Data, []byte(`"traceparent"`)) {
		return Trace{} // The usual case.
	}
	var t Trace
	if json.Unmarshal(n.Data, &t) != nil {
		return Trace{}
	}
	return ParseTrace(t.Parent, t.State)
}

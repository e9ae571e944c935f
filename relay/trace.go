package relay

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Trace is where a notification comes from in a distributed trace, W3C Trace Context 1. Its zero value is none.
type Trace struct {
	// Parent is the value of traceparent, State that of tracestate, which may be empty.
	Parent string `json:"traceparent"`
	State  string `json:"tracestate"`
}

// maxTraceState is what tracers must be able to pass on, in bytes; longer ones are dropped whole, as the specification allows.
const maxTraceState = 512

// ParseTrace returns the trace of the two headers, none where parent is not valid, and no state where that cannot be a header.
func ParseTrace(parent, state string) Trace {
	if !validParent(parent) {
		return Trace{}
	}
	if state = strings.TrimSpace(state); len(state) > maxTraceState || strings.ContainsFunc(state, func(c rune) bool { return c < ' ' || c > '~' }) {
		state = ""
	}
	return Trace{Parent: parent, State: state}
}

// validParent tells whether s is version-trace-parent-flags, in lower case, with ids that are not all zero. Versions to come may
// have more behind that.
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

// Trace is what the members traceparent and tracestate of the notification say, none where they are missing or not valid.
func (n Notification) Trace() Trace {
	if !bytes.Contains(n.Data, []byte(`"traceparent"`)) {
		return Trace{} // nearly all
	}
	var t Trace
	if json.Unmarshal(n.Data, &t) != nil {
		return Trace{}
	}
	return ParseTrace(t.Parent, t.State)
}

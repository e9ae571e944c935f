package adminapi

import "time"

// SourceUnread is the state of a source that no node reads at present.
const SourceUnread = "unread"

// Source is the state of an upstream, reported by the node that reads it. The counts are totals of all nodes since the
// source was first configured.
type Source struct {
	Name   string   `json:"name"`
	Type   string   `json:"type"`
	URL    string   `json:"url"`
	HubID  string   `json:"hub_id,omitempty"`
	Topics []string `json:"topics"`
	// State is connecting, connected, retrying, rejected (an operator must fix a problem) or unread.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	Node   string `json:"node,omitempty"`
	// StateChangedAt is the time of the state.
	StateChangedAt time.Time `json:"state_changed_at,omitzero"`
	// NextAttemptAt is the time of the next attempt to connect.
	NextAttemptAt time.Time `json:"next_attempt_at,omitzero"`
	// Resumes reports whether the upstream provides cursors, so no events are lost while the source is not read.
	Resumes     bool      `json:"resumes"`
	LastEventAt time.Time `json:"last_event_at,omitzero"`
	// Stored is the number of events that were stored in the log, and Quarantined the number of invalid ones. Returned is the number
	// of events of this relay that returned through a loop and were discarded.
	Stored      int64 `json:"stored"`
	Quarantined int64 `json:"quarantined"`
	Returned    int64 `json:"returned"`
	Gaps        int64 `json:"gaps"`
}

// ListSources lists the configured sources sorted by name.
func ListSources() Operation[PageRequest, Page[Source]] {
	return viewerOperation[PageRequest, Page[Source]]("sources.list", "/api/sources", "List all sources with their state and stats")
}

package adminapi

import (
	"net/http"
	"time"
)

// QuarantinedEntry is an invalid entry of the inbox or of a source, without its content.
type QuarantinedEntry struct {
	ID string `json:"id"`
	// Time is the time at which the entry was rejected.
	Time time.Time `json:"time"`
	// Reason is a sentence for the producer.
	Reason string `json:"reason"`
	// InboxID is the ID that the entry had in the inbox.
	InboxID string `json:"inbox_id,omitempty"`
	// Source is the name of the source that sent the entry.
	Source string `json:"source,omitempty"`
	// IdempotencyKey is the key of the producer. A replayed entry keeps it.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Size is the size of the content in bytes.
	Size int `json:"size"`
}

// QuarantinedEntryDetails is an entry with its content.
type QuarantinedEntryDetails struct {
	QuarantinedEntry
	// Data is the content that the producer sent. It need not be JSON. Bytes that are not UTF-8 are replaced.
	Data string `json:"data"`
}

// ReplayQuarantinedRequest is the request of [ReplayQuarantined].
type ReplayQuarantinedRequest struct {
	// Data replaces the content, which stays unchanged if Data is empty.
	Data string `json:"data,omitempty"`
}

// ReplayedEntry is the result of [ReplayQuarantined].
type ReplayedEntry struct {
	ID    string `json:"id"`
	Topic string `json:"topic"`
	HubID string `json:"hub_id"`
}

// DropQuarantinedRequest is the request of [DropQuarantined].
type DropQuarantinedRequest struct {
	// IDs name 1 to 1,000 entries.
	IDs []string `json:"ids"`
}

// ListQuarantine lists the quarantine, the oldest entry first.
func ListQuarantine() Operation[PageRequest, Page[QuarantinedEntry]] {
	return viewerOperation[PageRequest, Page[QuarantinedEntry]]("quarantine.list", "/api/quarantine",
		"List the rejected entries of the inbox and of sources, the oldest first")
}

// ShowQuarantined shows an entry with its content. It requires an operator, because the content can belong to any account.
func ShowQuarantined() Operation[Empty, QuarantinedEntryDetails] {
	return newOperation[Empty, QuarantinedEntryDetails]("quarantine.show", http.MethodGet, "/api/quarantine/{id}", RoleOperator,
		"Show a rejected entry with its content")
}

// ReplayQuarantined moves an entry to the inbox, unchanged or with other content. The relay must accept the content.
func ReplayQuarantined() Operation[ReplayQuarantinedRequest, ReplayedEntry] {
	return operatorOperation[ReplayQuarantinedRequest, ReplayedEntry]("quarantine.replay", "/api/quarantine/{id}/replay",
		"Move a rejected entry to the inbox, unchanged or corrected")
}

// DropQuarantined removes entries.
func DropQuarantined() Operation[DropQuarantinedRequest, ChangeResult] {
	return operatorOperation[DropQuarantinedRequest, ChangeResult]("quarantine.drop", "/api/quarantine/drop",
		"Drop rejected entries")
}

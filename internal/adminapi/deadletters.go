package adminapi

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// DeadLetter is a delivery that is not retried again.
type DeadLetter struct {
	// ID is the ID of the delivery. For a delivery of one event it is the ID of the event.
	ID            string    `json:"id"`
	Topic         string    `json:"topic"`
	HubID         string    `json:"hub_id"`
	AccountID     string    `json:"account_id"`
	LastAttemptAt time.Time `json:"last_attempt_at"`
	// Reason is permanent (a retry cannot help), exhausted (no attempts are left, or retry.max_age was reached) or unreadable (the
	// stored delivery cannot be decoded).
	Reason string `json:"reason"`
	// Error is the error of the last attempt.
	Error string `json:"error"`
	// Attempts is the number of attempts, replays included.
	Attempts int `json:"attempts"`
}

// DeadLetterDetails is a dead letter with its events and attempts.
type DeadLetterDetails struct {
	DeadLetter
	// Attempts are the newest attempts, the oldest first.
	Attempts []Attempt `json:"attempts"`
	// Events are one event, or several for a digest or a batch. They are empty if the delivery cannot be decoded.
	Events []json.RawMessage `json:"events"`
	// Raw is the stored text of a delivery that cannot be decoded.
	Raw string `json:"raw,omitempty"`
	// Digest describes the events of a digest.
	Digest *relay.Digest `json:"digest,omitempty"`
	// Batch reports whether the delivery is a batch.
	Batch bool `json:"batch,omitempty"`
}

// DeadLetterFilter selects dead letters of a sink.
type DeadLetterFilter struct {
	// Topics are patterns.
	Topics []string `json:"topics,omitempty"`
	HubID  string   `json:"hub_id,omitempty"`
	// Since is a time or an age such as 24h.
	Since string `json:"since,omitempty"`
}

// TopicPatterns implements [HasTopics].
func (d DeadLetterFilter) TopicPatterns() []string { return d.Topics }

// ListDeadLettersRequest is the request of [ListDeadLetters].
type ListDeadLettersRequest struct {
	DeadLetterFilter
	PageRequest
}

// ChangeDeadLettersRequest selects dead letters for a change, either by IDs or all that match the filter.
type ChangeDeadLettersRequest struct {
	IDs []string `json:"ids,omitempty"`
	All bool     `json:"all,omitempty"`
	DeadLetterFilter
	PageRequest
}

// ChangeDeadLettersResult is the result of deadletters.replay and deadletters.drop.
type ChangeDeadLettersResult struct {
	ChangeResult
	// Next is the value of after for the next request with all. It is empty after the last.
	Next string `json:"next,omitempty"`
}

// ListDeadLetters lists the dead letters of a sink, the oldest first.
func ListDeadLetters() Operation[ListDeadLettersRequest, Page[DeadLetter]] {
	return viewerOperation[ListDeadLettersRequest, Page[DeadLetter]]("deadletters.list", "/api/sinks/{name}/deadletters",
		"List the dead letters of a sink, the oldest first")
}

// ShowDeadLetter shows a dead letter with its events and attempts. It requires an operator, because events contain data of
// accounts.
func ShowDeadLetter() Operation[Empty, DeadLetterDetails] {
	return newOperation[Empty, DeadLetterDetails]("deadletters.show", http.MethodGet, "/api/sinks/{name}/deadletters/{id}",
		RoleOperator, "Show a dead letter with its events and attempts")
}

// ReplayDeadLetters delivers dead letters again.
func ReplayDeadLetters() Operation[ChangeDeadLettersRequest, ChangeDeadLettersResult] {
	return operatorOperation[ChangeDeadLettersRequest, ChangeDeadLettersResult]("deadletters.replay",
		"/api/sinks/{name}/deadletters/replay", "Deliver dead letters again")
}

// DropDeadLetters removes dead letters.
func DropDeadLetters() Operation[ChangeDeadLettersRequest, ChangeDeadLettersResult] {
	return operatorOperation[ChangeDeadLettersRequest, ChangeDeadLettersResult]("deadletters.drop",
		"/api/sinks/{name}/deadletters/drop", "Drop dead letters")
}

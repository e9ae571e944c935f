package adminapi

import "time"

// SinkState is the state of a sink.
type SinkState string

// The states of a sink.
const (
	SinkActive   SinkState = "active"
	SinkPaused   SinkState = "paused"   // by an operator
	SinkDisabled SinkState = "disabled" // by the relay, because the destination asked for it or failed for days
	// SinkDown means that the circuit breaker is open: this node makes one attempt at a time as a probe.
	SinkDown SinkState = "down"
	// SinkThrottled means that the destination asked to wait.
	SinkThrottled SinkState = "throttled"
	// SinkFailed means that this node cannot deliver, for example because a plugin does not start.
	SinkFailed SinkState = "failed"
	// SinkRemoved means that the sink is not in the configuration of this node.
	SinkRemoved SinkState = "removed"
)

// SinkStates returns all states of a sink.
func SinkStates() []SinkState {
	return []SinkState{SinkActive, SinkPaused, SinkDisabled, SinkDown, SinkThrottled, SinkFailed, SinkRemoved}
}

// Sink is the state of a sink with its stats. Counts are totals of all nodes unless stated otherwise.
type Sink struct {
	Name string `json:"name"`
	// Type is empty for a sink that is not configured.
	Type string `json:"type"`
	// Configured is false for a sink that was removed from the configuration of this node.
	Configured bool `json:"configured"`
	// MissingOn are the other nodes whose configuration does not have the sink, as of a few seconds ago. While such a node
	// dispatches the log, the sink gets no new events.
	MissingOn []string `json:"missing_on,omitempty"`
	// FailedOn are the other nodes on which the sink has had the state failed for 15 s, as of a few seconds ago. They leave its
	// deliveries to nodes on which it works.
	FailedOn []string  `json:"failed_on,omitempty"`
	State    SinkState `json:"state"`
	// Reason explains the state. An active sink has a reason only while new deliveries wait for scheduled ones.
	Reason string `json:"reason,omitempty"`
	// StateChangedAt is the time of the state. For down, throttled and failed it is up to five seconds late, and omitted before that.
	StateChangedAt time.Time `json:"state_changed_at,omitzero"`
	// NextAttemptAt is the earliest time of the next attempt of a sink that is down or throttled.
	NextAttemptAt time.Time `json:"next_attempt_at,omitzero"`
	// FailingAccounts are up to 100 accounts for which the destination fails although it works for others. This node postpones
	// their deliveries.
	FailingAccounts []string `json:"failing_accounts,omitempty"`
	// Topics are the patterns of the sink. Empty means all topics.
	Topics []string `json:"topics"`
	// Waiting is the number of events without an attempt, in the queue and in open digests. WaitingInDigests is the
	// number of those in open digests.
	Waiting          int64 `json:"waiting"`
	WaitingInDigests int64 `json:"waiting_in_digests"`
	// CatchingUp is true if further events may wait in the log, because the queue was full or the sink was absent.
	CatchingUp bool `json:"catching_up"`
	// Retrying is the number of scheduled retries.
	Retrying int64 `json:"retrying"`
	// Dead is the number of dead letters.
	Dead int64 `json:"dead"`
	// InFlight is the number of running attempts of this node.
	InFlight int64 `json:"in_flight"`
	// OldestAt is the time of the oldest event that is waiting or retrying.
	OldestAt time.Time `json:"oldest_at,omitzero"`
	// LastSuccessAt is omitted if nothing was delivered yet.
	LastSuccessAt time.Time `json:"last_success_at,omitzero"`
	// LastError describes the last failed attempt, without secrets and in at most 512 bytes. LastErrorAt is its time.
	// Later successes do not clear them. They are omitted if no attempt has failed.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
	// Delivered and FailedAttempts (by reason) count attempts, Retries those after the first attempt of a delivery. They
	// are up to date for this node and at most a second old for others. A killed node loses the counts of its last second.
	Delivered      int64            `json:"delivered"`
	Retries        int64            `json:"retries"`
	FailedAttempts map[string]int64 `json:"failed_attempts"`
	// AttemptSeconds is the duration of all attempts together, in seconds.
	AttemptSeconds float64 `json:"attempt_seconds"`
	// Dropped counts the events and dead letters that were dropped because of a limit: the backlog, the share of their account, or
	// the memory of Redis. It does not count what operators drop.
	Dropped int64 `json:"dropped"`
	// Changes are the last changes of the state, the newest first. Only sinks.show returns them.
	Changes []SinkChange `json:"changes,omitempty"`
}

// SinkChange is a change of the state of a sink.
type SinkChange struct {
	Time  time.Time `json:"time"`
	State SinkState `json:"state"`
	// Actor is the operator, such as "admin alice", or relay.
	Actor  string `json:"actor"`
	Reason string `json:"reason,omitempty"`
	// Node is the node whose state changed. It is omitted if the change applies to all nodes.
	Node string `json:"node,omitempty"`
}

// RetryResult is the result of [RetrySink].
type RetryResult struct {
	// Started is the number of retries that start as soon as rate, concurrency and destination allow.
	// Deliveries that wait for an earlier one with their ordering key follow it and are not counted.
	Started int `json:"started"`
	// OnOtherNode is set if another node attempts the deliveries of the sink, because it is ordered. This node starts no probe then.
	OnOtherNode bool `json:"on_other_node"`
	// Sink is the sink immediately before.
	Sink Sink `json:"sink"`
}

// Attempt is one call of a sink.
type Attempt struct {
	Time time.Time `json:"time"`
	// Outcome is delivered, retry (perhaps a temporary failure, even if no attempt is left), permanent or gone.
	Outcome string `json:"outcome"`
	// Status is the HTTP status, or 0.
	Status     int     `json:"status,omitempty"`
	Error      string  `json:"error,omitempty"`
	DurationMS float64 `json:"duration_ms"`
	// Response is the beginning of the response of the destination.
	Response string `json:"response,omitempty"`
}

// ReplayRequest selects events of the log that a sink receives again. The filter of the sink must match them, too. After
// or EventIDs is required.
type ReplayRequest struct {
	// After is a time, an age such as 24h, the cursor of a stream, or the ID of an entry of the log.
	After string `json:"after,omitempty"`
	// Until is a time or an age. Only earlier events are selected.
	Until string `json:"until,omitempty"`
	// Topics are patterns.
	Topics []string `json:"topics,omitempty"`
	HubID  string   `json:"hub_id,omitempty"`
	// EventIDs are at most 1,000.
	EventIDs []string `json:"event_ids,omitempty"`
	// FailedOnly selects only dead letters, also dropped ones, and events that an operator or the share of an account has
	// dropped, according to the history, which is up to a second late. Events that a full queue has dropped are not in it: replay
	// them without FailedOnly.
	FailedOnly bool `json:"failed_only,omitempty"`
	// DryRun only counts the events.
	DryRun bool `json:"dry_run,omitempty"`
}

// TopicPatterns implements [HasTopics].
func (r ReplayRequest) TopicPatterns() []string { return r.Topics }

// ReplayResult is the result of [ReplaySink].
type ReplayResult struct {
	// Replayed is the number of events that the sink gets again, or would get without dry_run.
	Replayed int `json:"replayed"`
	// Skipped is the number of events that still wait or are retried.
	Skipped int `json:"skipped"`
	// Complete is false if the log no longer contains everything after the position.
	Complete bool `json:"complete"`
	// DryRun is true if nothing was replayed.
	DryRun bool `json:"dry_run"`
}

// ForgetRequest is the request of [ForgetSink].
type ForgetRequest struct {
	// DeadLetters deletes the dead letters, too.
	DeadLetters bool `json:"dead_letters,omitempty"`
}

// ForgetResult is the result of [ForgetSink].
type ForgetResult struct {
	// Forgotten is the name of the sink.
	Forgotten string `json:"forgotten"`
}

// ListSinks lists the configured sinks, and removed ones that were not forgotten, sorted by name.
func ListSinks() Operation[PageRequest, Page[Sink]] {
	return viewerOperation[PageRequest, Page[Sink]]("sinks.list", "/api/sinks", "List all sinks with their state and stats")
}

// ShowSink shows one sink.
func ShowSink() Operation[Empty, Sink] {
	return viewerOperation[Empty, Sink]("sinks.show", "/api/sinks/{name}", "Show a sink with its state and stats")
}

// PauseSink stops deliveries to a sink on all nodes within about a second. The backlog is kept.
func PauseSink() Operation[Empty, Sink] {
	return operatorOperation[Empty, Sink]("sinks.pause", "/api/sinks/{name}/pause", "Stop deliveries and keep the backlog")
}

// ResumeSink continues a paused or disabled sink, starts a probe if it is down, and ends the pause that its destination asked for.
func ResumeSink() Operation[Empty, Sink] {
	return operatorOperation[Empty, Sink]("sinks.resume", "/api/sinks/{name}/resume",
		"Resume a sink that is paused, disabled, down or throttled")
}

// RetrySink makes all scheduled retries due, and starts a probe if the sink is down.
func RetrySink() Operation[Empty, RetryResult] {
	return operatorOperation[Empty, RetryResult]("sinks.retry", "/api/sinks/{name}/retry", "Start all scheduled retries of a sink now")
}

// ReplaySink delivers events of the log again.
func ReplaySink() Operation[ReplayRequest, ReplayResult] {
	return operatorOperation[ReplayRequest, ReplayResult]("sinks.replay", "/api/sinks/{name}/replay",
		"Deliver events of the log again")
}

// TestSink makes one attempt with a sample that is not stored.
func TestSink() Operation[Empty, Attempt] {
	return checkOperation[Empty, Attempt]("sinks.test", "/api/sinks/{name}/test", "Send a sample to the destination")
}

// ForgetSink deletes the data of a sink that was removed from the configuration.
func ForgetSink() Operation[ForgetRequest, ForgetResult] {
	return operatorOperation[ForgetRequest, ForgetResult]("sinks.forget", "/api/sinks/{name}/forget",
		"Delete the data of a removed sink")
}

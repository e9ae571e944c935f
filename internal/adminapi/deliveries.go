package adminapi

import "time"

// Delivery is the delivery of an event to a sink.
type Delivery struct {
	// EventID and Topic are empty for an open digest, which is one entry.
	EventID string `json:"event_id"`
	Sink    string `json:"sink"`
	Topic   string `json:"topic"`
	// State is waiting, retrying, dead, dropped or delivered.
	State DeliveryState `json:"state"`
	// Attempts is the number of attempts.
	Attempts int `json:"attempts"`
	// LastAttemptAt is null before the first attempt. For a dropped delivery it is the time at which it was dropped.
	LastAttemptAt *time.Time `json:"last_attempt_at"`
	// NextAttemptAt is null without a next attempt, and while an attempt is running.
	NextAttemptAt *time.Time `json:"next_attempt_at"`
	// Status is the status code of the last attempt, or 0.
	Status int `json:"status"`
	// Reason is that of the dead letter, or why the delivery was dropped: account_share or operator. It is empty in other states.
	Reason string `json:"reason"`
	// Error is the error of the last attempt.
	Error string `json:"error"`
	// DeliveryID is the ID of the delivery if it differs from that of the event, as for a batch or digest.
	DeliveryID string `json:"delivery_id,omitempty"`
	// DigestEvents is the number of events in an open digest, which is sealed at next_attempt_at.
	DigestEvents int `json:"digest_events,omitempty"`
}

// ListDeliveriesRequest selects deliveries.
type ListDeliveriesRequest struct {
	// Sink is a name. Empty selects all sinks.
	Sink string `json:"sink,omitempty"`
	// States are waiting, retrying, dead, dropped and delivered. Empty selects all.
	States []string `json:"states,omitempty"`
	// Topics are patterns.
	Topics []string `json:"topics,omitempty"`
	// Since is a time or an age such as 24h. It limits the last attempt, and for a delivery without one the time of the event.
	Since string `json:"since,omitempty"`
	PageRequest
}

// TopicPatterns implements [HasTopics].
func (r ListDeliveriesRequest) TopicPatterns() []string { return r.Topics }

// The reasons of dropped deliveries.
const (
	DroppedAccountShare = "account_share" // the account had used its share of the backlog
	DroppedByOperator   = "operator"
)

// ChangeDeliveriesRequest selects deliveries of a sink.
type ChangeDeliveriesRequest struct {
	// IDs are up to 500 IDs of deliveries. For a delivery of one event it is the ID of the event.
	IDs []string `json:"ids"`
}

// RetryDeliveries makes scheduled retries due at once.
func RetryDeliveries() Operation[ChangeDeliveriesRequest, ChangeResult] {
	return operatorOperation[ChangeDeliveriesRequest, ChangeResult]("deliveries.retry",
		"/api/sinks/{name}/deliveries/retry", "Start scheduled retries now")
}

// DropDeliveries removes deliveries that wait for an attempt. The sink never gets them.
func DropDeliveries() Operation[ChangeDeliveriesRequest, ChangeResult] {
	return operatorOperation[ChangeDeliveriesRequest, ChangeResult]("deliveries.drop",
		"/api/sinks/{name}/deliveries/drop", "Drop deliveries that wait for an attempt")
}

// ListDeliveries lists deliveries: for each sink and state in the order of the states, those in the queue and in the retry
// queue as they follow, and the others the newest first. A page can be empty although more
// follow, because a search returns after about two seconds.
func ListDeliveries() Operation[ListDeliveriesRequest, Page[Delivery]] {
	return viewerOperation[ListDeliveriesRequest, Page[Delivery]]("deliveries.list", "/api/deliveries",
		"List the deliveries of one sink or of all, by state")
}

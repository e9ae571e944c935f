package adminapi

import (
	"encoding/json"
	"time"
)

// Publisher is who published an event.
type Publisher struct {
	// Kind is key, source, inbox or relay. It is empty if it is unknown, because another program or an
	// older version wrote to the log, or the event is no longer in the log.
	Kind string `json:"kind"`
	// Name is the name of the key or of the source.
	Name string `json:"name"`
}

// Event is an event in the log.
type Event struct {
	ID string `json:"id"`
	// Time is the time at which the event was stored.
	Time      time.Time `json:"time"`
	Topic     string    `json:"topic"`
	HubID     string    `json:"hub_id"`
	AccountID string    `json:"account_id"`
	ObjectID  string    `json:"object_id"`
	Publisher Publisher `json:"publisher"`
}

// SearchEventsRequest selects events. Members that are empty select all.
type SearchEventsRequest struct {
	ObjectID string `json:"object_id,omitempty"`
	// ContainerID, EnvironmentID, Cluster and DNSZone are values of the lists in the context of events.
	ContainerID   string `json:"container_id,omitempty"`
	EnvironmentID string `json:"environment_id,omitempty"`
	Cluster       string `json:"cluster,omitempty"`
	DNSZone       string `json:"dns_zone,omitempty"`
	// Topics are patterns.
	Topics    []string `json:"topics,omitempty"`
	HubID     string   `json:"hub_id,omitempty"`
	AccountID string   `json:"account_id,omitempty"`
	// Publisher is a name, such as ops, or kind and name, such as "key ops".
	Publisher string `json:"publisher,omitempty"`
	// Since and Until are times, or ages such as 24h.
	Since string `json:"since,omitempty"`
	Until string `json:"until,omitempty"`
	PageRequest
}

// TopicPatterns implements [HasTopics].
func (r SearchEventsRequest) TopicPatterns() []string { return r.Topics }

// EventPage is a page of events. It can have fewer events than the limit, even none, although next is not empty: a search
// returns after about two seconds.
type EventPage struct {
	Page[Event]
	// SearchedTo is the time back to which events were compared.
	SearchedTo time.Time `json:"searched_to,omitzero"`
}

// Body returns the page itself, with an empty list instead of null.
func (p EventPage) Body() any {
	if p.Data == nil {
		p.Data = []Event{}
	}
	return p
}

// SearchEvents searches the log.
func SearchEvents() Operation[SearchEventsRequest, EventPage] {
	return viewerOperation[SearchEventsRequest, EventPage]("events.search", "/api/events", "Search the events in the log, the newest first")
}

// DeliveryState is the state of the delivery of an event to a sink.
type DeliveryState string

// The states of deliveries.
const (
	DeliveryWaiting    DeliveryState = "waiting"     // in the queue of the sink or in a digest, without an attempt
	DeliveryRetrying   DeliveryState = "retrying"    // in the retry queue, because it failed, was replayed, or must wait for others
	DeliveryDelivered  DeliveryState = "delivered"   // accepted by the destination
	DeliveryDead       DeliveryState = "dead"        // a dead letter
	DeliveryDropped    DeliveryState = "dropped"     // removed by a limit or by an operator
	DeliveryNotMatched DeliveryState = "not_matched" // excluded by the filter of the sink
	DeliveryUnknown    DeliveryState = "unknown"     // the history of the delivery is lost or expired
)

// EventDetails is an event with everything that is known about it.
type EventDetails struct {
	Event
	// Payload is the event as clients receive it. It is null if the event is no longer in the log, and for a viewer.
	Payload json.RawMessage `json:"payload"`
	// Sinks contains the sinks that were configured when the event was dispatched, and sinks that were added later, sorted by
	// name.
	Sinks []EventSink `json:"sinks"`
	// Streams are the nodes whose clients of streams received the event. Clients that resumed later do not count.
	Streams []EventStream `json:"streams"`
	// Incomplete reports that the history was too large to be read in time, so attempts may be missing.
	Incomplete bool `json:"incomplete,omitempty"`
}

// EventSink is the delivery of an event to a sink.
type EventSink struct {
	Sink  string        `json:"sink"`
	State DeliveryState `json:"state"`
	// Reason is the part of the filter that excluded the event (topics, hubs, accounts, environments, clusters, containers,
	// or "when: " and the condition that was false; viewers see only when), or added_later, backlog, account_share, operator or
	// dead_letter_dropped. For a dead letter it is permanent or exhausted. For an event that waits it is paused, disabled, down,
	// throttled, failed, removed, digest, ordering or running, if one of these is the cause.
	Reason string `json:"reason"`
	// Detail is a sentence about the reason. For an event that was not matched, only operators see it.
	Detail string `json:"detail,omitempty"`
	// NextAttemptAt is the time of the next attempt, or the time at which a digest is sealed. It is null without a next attempt.
	NextAttemptAt *time.Time `json:"next_attempt_at"`
	// Attempts are the oldest first.
	Attempts []EventAttempt `json:"attempts"`
}

// EventAttempt is an attempt to deliver an event.
type EventAttempt struct {
	// Number starts with 1. A replay starts again.
	Number     int       `json:"number"`
	Time       time.Time `json:"time"`
	DurationMS float64   `json:"duration_ms"`
	// Outcome is delivered, retry (perhaps a temporary failure, even if no attempt is left), permanent or gone.
	Outcome string `json:"outcome"`
	// Status is the status code of the destination, or 0.
	Status int    `json:"status"`
	Error  string `json:"error"`
	Node   string `json:"node"`
	// DeliveryID is the ID of a batch or digest that contained the event.
	DeliveryID string `json:"delivery_id,omitempty"`
}

// EventStream is the number of clients of streams of a node that received an event.
type EventStream struct {
	Node    string `json:"node"`
	Clients int    `json:"clients"`
	// Keys are the names of the keys of up to 100 of those clients that are still connected to the node that responds, one for
	// each client. They are there only with history.clients in the configuration.
	Keys []string `json:"keys,omitempty"`
}

// ShowEvent shows an event and its deliveries.
func ShowEvent() Operation[Empty, EventDetails] {
	return viewerOperation[Empty, EventDetails]("events.show", "/api/events/{id}", "Show an event and its deliveries")
}

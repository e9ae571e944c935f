package adminapi

import "time"

// Publisher is who published an event.
type Publisher struct {
	// Kind is key, source, inbox or relay. It is empty if it is unknown, because another program wrote to the log.
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
	// Container, Environment, Cluster and DNSZone are values of the lists in the context of events.
	Container   string `json:"container,omitempty"`
	Environment string `json:"environment,omitempty"`
	Cluster     string `json:"cluster,omitempty"`
	DNSZone     string `json:"dns_zone,omitempty"`
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

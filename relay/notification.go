package relay

import (
	"encoding/json"
	"fmt"
)

// Notification is one event of a hub as it travels through the relay.
//
// Topic, Hub and Account repeat what stands in Data, so that nothing behind the ingest parses JSON to route. A
// Notification is shared between goroutines once it has left the ingest: nobody may change it, Data included.
type Notification struct {
	// ID is given by the relay: 24 hexadecimal digits, unique, the same in every attempt and replay.
	ID string
	// Topic is one of the catalog's topics.
	Topic string
	// Hub is context.hub_id, never empty.
	Hub string
	// Account is context.account_id; empty for a notification that belongs to its hub alone.
	Account string
	// Cursor is the position in the log, empty before the notification was stored.
	Cursor string
	// Data is the exact JSON text that a client receives, without a final newline.
	Data json.RawMessage
}

// Envelope is the decoded form of a notification's Data, for those who look inside. Members that spec.md does not
// name stay in Data only.
type Envelope struct {
	Topic   string  `json:"topic"`
	Object  Object  `json:"object"`
	Context Context `json:"context"`
}

// Object identifies what a notification is about and carries its state and error, which may be empty.
type Object struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Error string `json:"error"`
}

// Context says whom and what a notification concerns.
type Context struct {
	HubID        string   `json:"hub_id"`
	AccountID    string   `json:"account_id"`
	Environments []string `json:"environments"`
	DNSZones     []string `json:"dns_zones"`
	Clusters     []string `json:"clusters"`
	Containers   []string `json:"containers"`
}

// Envelope decodes Data. Names are compared exactly, unlike encoding/json does, so that an unknown member such as
// "HUB_ID" cannot pose as another hub. It fails only for a Notification that did not come through the ingest.
func (n Notification) Envelope() (Envelope, error) {
	var e Envelope
	var object, context json.RawMessage
	err := pick(n.Data, map[string]any{"topic": &e.Topic, "object": &object, "context": &context})
	if err == nil {
		err = pick(object, map[string]any{"id": &e.Object.ID, "state": &e.Object.State, "error": &e.Object.Error})
	}
	if err == nil {
		err = pick(context, map[string]any{
			"hub_id": &e.Context.HubID, "account_id": &e.Context.AccountID, "environments": &e.Context.Environments,
			"dns_zones": &e.Context.DNSZones, "clusters": &e.Context.Clusters, "containers": &e.Context.Containers,
		})
	}
	if err != nil {
		return Envelope{}, fmt.Errorf("decode notification %s: %w", n.ID, err)
	}
	return e, nil
}

// pick decodes the members of a JSON object that have exactly the names of into.
func pick(data []byte, into map[string]any) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return err
	}
	for name, target := range into {
		value, ok := members[name]
		if !ok {
			continue
		}
		if err := json.Unmarshal(value, target); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

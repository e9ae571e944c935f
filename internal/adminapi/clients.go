package adminapi

import (
	"encoding/json"
	"time"
)

// Connection is a client of the stream that is connected to this node.
type Connection struct {
	HubID string `json:"hub_id,omitempty"`
	// AccountID is set for the stream of an account.
	AccountID string `json:"account_id,omitempty"`
	Key       string `json:"key"`
	// Address is the address and port of the client, or of the proxy in front of it.
	Address string `json:"address"`
	// Type is websocket or sse.
	Type        string    `json:"type"`
	ConnectedAt time.Time `json:"connected_at"`
	// Topics are the patterns of the client. Empty means all topics.
	Topics []string `json:"topics"`
	// QueuedBytes is the number of bytes in the write queue of the client.
	QueuedBytes int `json:"queued_bytes"`
	// State is live, replaying or closing.
	State string `json:"state"`
}

// ListConnectionsRequest selects connections.
type ListConnectionsRequest struct {
	HubID string `json:"hub_id,omitempty"`
	Key   string `json:"key,omitempty"`
	PageRequest
}

// ListConnections lists the clients of this node, the oldest connection first.
func ListConnections() Operation[ListConnectionsRequest, Page[Connection]] {
	return viewerOperation[ListConnectionsRequest, Page[Connection]]("connections.list", "/api/connections",
		"List the clients of this node, the oldest connection first")
}

// ExplainStreamRequest describes a client: exactly one of Key, Credential and Claims.
type ExplainStreamRequest struct {
	// Key is the name of an API key.
	Key string `json:"key,omitempty"`
	// Credential is an API key, a token, a JWT, or a credential that auth.forward knows. It is not consumed or logged.
	Credential string `json:"credential,omitempty"`
	// Claims are the claims of a JWT. No signature is needed.
	Claims json.RawMessage `json:"claims,omitempty"`
	// HubID is the hub of the stream. It is empty for the stream of an account, and for a token, which is for one stream.
	HubID string `json:"hub_id,omitempty"`
	// Topics are the patterns of the client. Empty means all topics, or the patterns of the token.
	Topics []string `json:"topics,omitempty"`
	// Limit is the maximum number of events. 0 means the default.
	Limit int `json:"limit,omitempty"`
}

// StreamExplanation describes what a client sees on a stream.
type StreamExplanation struct {
	// Rejection is null if the client can open the stream. Otherwise all other members are empty.
	Rejection *Rejection `json:"rejection"`
	// Key is the name of the key, or "jwt:" and the subject of a JWT.
	Key       string   `json:"key"`
	HubID     string   `json:"hub_id"`
	AccountID string   `json:"account_id"`
	Hubs      []string `json:"hubs"`
	Topics    []string `json:"topics"`
	// Networks are the networks from which the key may be used. Empty means all.
	Networks  []string  `json:"networks"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	// Events are the newest events of the log, of all hubs and accounts, the newest first.
	Events []StreamEvent `json:"events"`
}

// Rejection is the error that a client gets.
type Rejection struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// StreamEvent is an event, and whether a client sees it.
type StreamEvent struct {
	Event
	Visible bool `json:"visible"`
	// Reason is the rule that excludes the event: topics, hub (the stream is that of another hub), hubs (the key may not read
	// the hub), or account. It is empty if the event is visible.
	Reason string `json:"reason"`
	// Detail is a sentence about the reason.
	Detail string `json:"detail"`
}

// ExplainStream explains which events a client sees on a stream. It changes nothing. It is a POST, because a URL must not
// contain credentials.
func ExplainStream() Operation[ExplainStreamRequest, StreamExplanation] {
	return checkOperation[ExplainStreamRequest, StreamExplanation]("streams.explain", "/api/streams/explain",
		"Explain which events a client sees on a stream")
}

package adminapi

import "time"

// Connection is a client of the stream that is connected to this node.
type Connection struct {
	HubID string `json:"hub_id,omitempty"`
	// AccountID is set for the stream of an account.
	AccountID string `json:"account_id,omitempty"`
	Key       string `json:"key"`
	Remote    string `json:"remote"`
	// Type is websocket or sse.
	Type  string    `json:"type"`
	Since time.Time `json:"since"`
	// Topics are the patterns of the client. Empty means all topics.
	Topics []string `json:"topics"`
	// QueuedBytes is the number of unsent bytes.
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

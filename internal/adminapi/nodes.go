package adminapi

import "time"

// Node is a process of the relay that is running.
type Node struct {
	Name string `json:"name"`
	// Host is the name of the machine or the pod.
	Host      string    `json:"host"`
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at,omitzero"`
	// NotReady is the reason why the node is not ready, as in its /readyz. It is empty if it is.
	NotReady string `json:"not_ready"`
	// ConfigWarning describes how the running configuration of the node differs from its file. It is empty if they are equal.
	ConfigWarning string `json:"config_warning"`
	// Clients are the clients of streams.
	Clients int `json:"clients"`
	// QueuedBytes wait to be sent to clients.
	QueuedBytes int `json:"queued_bytes"`
	// SeenAt is the time of this record. Each node renews its record every five seconds. It is omitted if there is no record;
	// then only the name is valid.
	SeenAt time.Time `json:"seen_at,omitzero"`
}

// ListNodes lists the nodes of the relay, in the order of their numbers. A killed node is listed for ten more seconds.
func ListNodes() Operation[Empty, []Node] {
	return viewerOperation[Empty, []Node]("nodes.list", "/api/nodes", "List the nodes that are running")
}

package adminapi

import "time"

// Status describes the relay as a whole.
type Status struct {
	// Node is the node that responds.
	Node    string `json:"node"`
	Version string `json:"version"`
	// StartedAt is the time at which this node started.
	StartedAt time.Time `json:"started_at"`
	// NotReady is the reason why this node is not ready, as in /readyz. It is empty if it is.
	NotReady string `json:"not_ready"`
	// ConfigWarning describes how the running configuration differs from the file. It is empty if they are equal.
	ConfigWarning string        `json:"config_warning"`
	Storage       StorageStatus `json:"storage"`
	Log           LogStatus     `json:"log"`
	Streams       StreamStatus  `json:"streams"`
	// Nodes are the names of all nodes that are running.
	Nodes []string `json:"nodes"`
}

// StorageStatus is the memory of Redis. In a cluster it is that of the fullest server.
type StorageStatus struct {
	UsedBytes int64 `json:"used_bytes"`
	// MaxBytes is the limit. 0 means that Redis has no limit.
	MaxBytes int64 `json:"max_bytes"`
}

// LogStatus describes the log of events.
type LogStatus struct {
	// Stored is the number of events that all nodes have stored since the log was created, or -1 if Redis does not count it
	// (before Redis 7).
	Stored int64 `json:"stored"`
	// Events is the number of events in the log.
	Events int64 `json:"events"`
	// OldestAt is the time of the oldest event in the log. It is omitted if the log is empty.
	OldestAt time.Time `json:"oldest_at,omitzero"`
}

// StreamStatus describes the clients of streams of the node that responds.
type StreamStatus struct {
	Clients int `json:"clients"`
	// QueuedBytes is the number of bytes in the write queues of the clients.
	QueuedBytes int `json:"queued_bytes"`
}

// ShowStatus shows the state of the relay.
func ShowStatus() Operation[Empty, Status] {
	return viewerOperation[Empty, Status]("status.show", "/api/status", "Show the health of the relay: storage, log, streams, nodes")
}

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
	// QueuedBytes is the number of bytes in the write queues of the clients.
	QueuedBytes int `json:"queued_bytes"`
	// SeenAt is the time of this record. Each node renews its record every five seconds. It is omitted if there is no record;
	// then only the name is valid.
	SeenAt time.Time `json:"seen_at,omitzero"`
}

// ListNodes lists the nodes of the relay, in the order of their numbers. A killed node is listed for ten more seconds.
func ListNodes() Operation[PageRequest, Page[Node]] {
	return viewerOperation[PageRequest, Page[Node]]("nodes.list", "/api/nodes", "List the nodes that are running")
}

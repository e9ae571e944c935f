package adminapi

import "time"

// AuditEntry is an entry of the audit log.
type AuditEntry struct {
	// ID identifies the entry in Redis. The file has no IDs.
	ID   string    `json:"id"`
	Time time.Time `json:"time"`
	// Actor is the user, token or key, such as "admin alice" or "key ops".
	Actor string `json:"actor,omitempty"`
	// AccountID is the account of the key. It is omitted for other actors.
	AccountID string `json:"account_id,omitempty"`
	// Address is the address of the client. It is omitted for a unix socket.
	Address string `json:"address,omitempty"`
	// Action is the name of an operation, or of another action.
	Action string `json:"action"`
	Target string `json:"target,omitempty"`
	// Result is ok, the code of the error, or rejected for a configuration that was not applied.
	Result string `json:"result"`
	Detail string `json:"detail,omitempty"`
	// Repeated is the number of further entries that this one summarizes.
	Repeated int `json:"repeated,omitempty"`
}

// ListAuditRequest selects entries of the audit log. A page has 100 by default, and at most 1,000. After
// two seconds, a page contains what was found, and has a next.
type ListAuditRequest struct {
	Actor     string `json:"actor,omitempty"`
	AccountID string `json:"account_id,omitempty"`
	Address   string `json:"address,omitempty"`
	Target    string `json:"target,omitempty"`
	// Action also selects the actions below it: sinks selects sinks.pause.
	Action string `json:"action,omitempty"`
	// Since is a time or an age such as 24h.
	Since string `json:"since,omitempty"`
	PageRequest
}

// ListAudit lists entries of the audit log of all nodes, the newest first.
func ListAudit() Operation[ListAuditRequest, Page[AuditEntry]] {
	return viewerOperation[ListAuditRequest, Page[AuditEntry]]("audit.list", "/api/audit", "Search the audit log, the newest entry first")
}

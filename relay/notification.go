// Package relay is the public vocabulary of hubrelay: notifications and their topics, the patterns and filters
// that select them, and the interfaces that sinks and migration drivers implement.
//
// The package imports only the standard library and does no I/O, so sinks and plugins can depend on it without
// depending on the daemon. Code that talks to Redis, HTTP or the file system belongs in another package.
package relay

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// Notification is one event of a hub.
//
// Topic, Hub and Account duplicate members of Data, so routing does not parse JSON. After ingest a Notification is
// shared between goroutines: nothing may modify it, including Data.
type Notification struct {
	// ID is assigned by the relay: 24 hexadecimal digits, unique, and the same in every attempt and replay.
	ID string
	// Topic is in the catalog, or one of [OperationalTopics].
	Topic string
	// Hub is context.hub_id. It is never empty.
	Hub string
	// Account is context.account_id. It is empty for a notification that belongs to its hub only.
	Account string
	// Cursor is the position in the log. It is empty until the notification is stored.
	Cursor string
	// Data is the exact JSON text that clients receive, without a final newline.
	Data json.RawMessage
}

// StoredAt returns the time at which the relay accepted the notification. The time comes from the ID, with a
// resolution of one second, and is the same in every attempt and replay. If the ID contains no plausible time, it
// comes from the cursor. Otherwise the result is the zero time.
func (n Notification) StoredAt() time.Time {
	if raw, err := hex.DecodeString(n.ID); err == nil && len(raw) == 12 {
		seconds := int64(raw[0])<<24 | int64(raw[1])<<16 | int64(raw[2])<<8 | int64(raw[3])
		if at := time.Unix(seconds, 0).UTC(); isPlausibleTime(at) {
			return at
		}
	}
	text, _, _ := strings.Cut(n.Cursor, "-")
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
		if at := time.UnixMilli(ms).UTC(); isPlausibleTime(at) {
			return at
		}
	}
	return time.Time{}
}

// OccurredAt returns [Notification.StoredAt], or the Unix epoch if that is zero. Payloads use it because they must
// be the same in every attempt.
func (n Notification) OccurredAt() time.Time {
	if at := n.StoredAt(); !at.IsZero() {
		return at
	}
	return time.Unix(0, 0).UTC()
}

// AppendMetadata appends the members "id" and "time" to the members of a JSON object: the ID, and
// [Notification.StoredAt] as RFC 3339. It appends nothing if the ID is empty.
func (n Notification) AppendMetadata(out []byte) []byte {
	if n.ID == "" {
		return out
	}
	out = append(append(append(out, `,"id":"`...), n.ID...), '"') // hexadecimal digits need no escaping
	if at := n.StoredAt(); !at.IsZero() {
		out = append(at.AppendFormat(append(out, `,"time":"`...), time.RFC3339), '"')
	}
	return out
}

// isPlausibleTime rejects numbers that are probably not times.
func isPlausibleTime(t time.Time) bool { return t.Year() >= 2020 && t.Year() < 2100 }

// Envelope is the decoded form of a notification's Data. Members that docs/specification.md does not define are in Data only.
type Envelope struct {
	Topic   string  `json:"topic"`
	Object  Object  `json:"object"`
	Context Context `json:"context"`
}

// Object identifies the subject of a notification. State and Error may be empty.
type Object struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Error string `json:"error"`
}

// Context identifies the hub, the account and the resources that a notification concerns.
type Context struct {
	HubID        string   `json:"hub_id"`
	AccountID    string   `json:"account_id"`
	Environments []string `json:"environments"`
	DNSZones     []string `json:"dns_zones"`
	Clusters     []string `json:"clusters"`
	Containers   []string `json:"containers"`
}

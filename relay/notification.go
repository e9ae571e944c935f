package relay

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"
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

// StoredAt is when the relay took the notification in: by its id to the second, which is the same in every attempt and
// replay; where the id tells no time, by its place in the log; zero where neither does.
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

// OccurredAt is Stored; where nothing tells, the beginning of the Unix time, for what must be the same in every attempt.
func (n Notification) OccurredAt() time.Time {
	if at := n.StoredAt(); !at.IsZero() {
		return at
	}
	return time.Unix(0, 0).UTC()
}

// isPlausibleTime tells times from numbers that only look like one.
func isPlausibleTime(t time.Time) bool { return t.Year() >= 2020 && t.Year() < 2100 }

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

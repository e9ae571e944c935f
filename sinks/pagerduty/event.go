package pagerduty

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/message"
	"github.com/hubrelay/hubrelay/relay"
)

// The limits are PagerDuty's: https://developer.pagerduty.com/docs/send-alert-event.
const (
	maxField   = 1024      // characters; a limit of PagerDuty for the summary, and ours for the other fields
	maxDetails = 256 << 10 // half of the maximum size of an event
)

// event is the JSON of PagerDuty's API.
type event struct {
	RoutingKey string   `json:"routing_key"`
	Action     string   `json:"event_action"`
	DedupKey   string   `json:"dedup_key"`
	Client     string   `json:"client,omitempty"`
	Payload    *payload `json:"payload,omitempty"`
	Links      []link   `json:"links,omitempty"`
}

type link struct {
	Href string `json:"href"`
	Text string `json:"text"`
}

type payload struct {
	Summary   string          `json:"summary"`
	Source    string          `json:"source"`
	Severity  string          `json:"severity"`
	Timestamp string          `json:"timestamp,omitempty"`
	Component string          `json:"component,omitempty"`
	Group     string          `json:"group,omitempty"`
	Class     string          `json:"class,omitempty"`
	Details   json.RawMessage `json:"custom_details,omitempty"`
}

// buildEvent returns the event for d without its key, or nil if d affects no alert. Errors are marked with their
// outcome.
func (s *Sink) buildEvent(ctx context.Context, d relay.Delivery) (*event, error) {
	e, err := newEvent(d, s.severity)
	if err != nil {
		return nil, relay.Permanent(err)
	}
	if e != nil && e.Payload != nil {
		err = s.applyTemplates(ctx, e, d)
	}
	return e, err
}

// encode returns JSON without HTML escapes, which could make the details exceed their maximum size.
func (e *event) encode(indent string) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(e); err != nil {
		return nil, fmt.Errorf("write the event %s: %w", e.DedupKey, err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// newEvent returns nil for a notification that is neither a problem nor a recovery. It fails for a digest.
func newEvent(d relay.Delivery, severity string) (*event, error) {
	if d.Digest != nil || len(d.Notifications) != 1 {
		return nil, fmt.Errorf(
			"delivery %s is a digest or has several events, but an alert of PagerDuty is about one: "+
				"remove digest from the settings of the sink", d.ID,
		)
	}
	n := d.Notifications[0]
	e, err := n.Envelope()
	if err != nil {
		return nil, err
	}
	e.Topic = n.Topic
	out := &event{DedupKey: dedupKey(n, e), Client: "hubrelay"}
	switch of := relay.SeverityOf(n.Topic, e.Object); {
	case n.IsSample():
		out.DedupKey, severity = "hubrelay-sample", "info"
	case of == relay.SeverityBad:
		if strings.EqualFold(e.Object.State, "unhealthy") && (severity == "critical" || severity == "error") {
			severity = "warning"
		}
	case of == relay.SeverityGood || isRecovery(n.Topic, e.Object.State):
		out.Action = "resolve"
		return out, nil
	default:
		return nil, nil
	}
	out.Action = "trigger"
	out.Payload = newPayload(n, e, severity)
	return out, nil
}

// isRecovery reports whether a state means that a problem is resolved.
func isRecovery(topic, state string) bool {
	if !strings.HasSuffix(topic, ".changed") || strings.HasSuffix(topic, ".desired_state.changed") {
		return false
	}
	switch strings.ToLower(strings.TrimSpace(state)) {
	case "running", "healthy", "online", "active", "live", "ready", "completed", "paid", "ok":
		return true
	}
	return false
}

func newPayload(n relay.Notification, e relay.Envelope, severity string) *payload {
	summary := e.Topic
	if state := strings.TrimSpace(e.Object.State); state != "" {
		summary += ": " + state
	}
	if e.Object.ID != "" {
		summary += " (" + e.Object.ID + ")"
	}
	if problem := strings.TrimSpace(e.Object.Error); problem != "" {
		summary += ": " + problem
	}
	source := e.Context.HubID
	if source == "" {
		source = "hubrelay" // a source is required
	}
	p := &payload{
		Summary: truncate(message.SingleLine(summary), maxField), Source: truncate(source, maxField),
		Severity: severity,
		Class:    truncate(e.Topic, maxField), Group: truncate(strings.Join(e.Context.Clusters, ", "), maxField),
		Component: truncate(strings.Join(e.Context.Containers, ", "), maxField),
	}
	if at := n.StoredAt(); !at.IsZero() {
		p.Timestamp = at.Format(time.RFC3339)
	}
	if len(n.Data) <= maxDetails {
		p.Details = n.Data
	}
	return p
}

// truncate limits a text to n characters.
func truncate(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// dedupKey is equal for a problem and its recovery. It contains the job, the instance, the container or the object, of
// an account in a hub. Topics that differ only in their last words, such as x.error and x.state.changed, share it.
func dedupKey(n relay.Notification, e relay.Envelope) string {
	kind, _, _ := strings.Cut(n.Topic, ".")
	id := e.Object.ID
	switch {
	case n.Topic == relay.TopicSinkDisabled, n.Topic == relay.TopicSinkRecovered:
		kind = "sink"
	case strings.HasPrefix(n.Topic, relay.OperationalPrefix):
		kind = n.Topic
	case strings.HasPrefix(n.Topic, "container."):
		if strings.HasPrefix(n.Topic, "container.instance.") {
			kind = "container.instance"
		}
		if id == "" && len(e.Context.Containers) == 1 {
			id = e.Context.Containers[0]
		}
	case kind != "job":
		kind = topicSubject(n.Topic)
	}
	if id == "" {
		id = n.ID // a separate alert
	}
	key := "hubrelay/" + message.SubjectKey(n, kind, id)
	if len(key) > 255 { // PagerDuty's limit
		sum := sha256.Sum256([]byte(key))
		key = "hubrelay/" + hex.EncodeToString(sum[:])
	}
	return key
}

// topicSubject returns the topic without its last words, which say what happened.
func topicSubject(topic string) string {
	for _, end := range []string{".state.changed", ".error", ".created", ".new", ".changed"} {
		if s, ok := strings.CutSuffix(topic, end); ok {
			return s
		}
	}
	return topic
}

// hashKey returns a hash that does not reveal the key.
func hashKey(key string) string {
	sum := sha256.Sum256([]byte("hubrelay " + key))
	return hex.EncodeToString(sum[:12])
}

package webhook

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	formatStructured = "cloudevents-structured"
	formatBinary     = "cloudevents-binary"

	contentStructured = "application/cloudevents+json"
	contentBatch      = "application/cloudevents-batch+json"
)

// CloudEvents controls the conversion of notifications to CloudEvents 1.0. The subject is the container if a
// notification concerns exactly one, otherwise the ID of its object.
type CloudEvents struct {
	// Source is the start of the source of each event, before /hubs/ and the hub.
	Source string `koanf:"source" doc:"Start of the source, such as https://hub.example.com."`
	// TypePrefix precedes the topic in the type.
	TypePrefix string `koanf:"type_prefix" doc:"Prefix of the type, such as com.example."`
}

func (c *CloudEvents) validate() (field, problem string) {
	if u, err := url.Parse(c.Source); err != nil || u.RawQuery != "" || u.Fragment != "" ||
		strings.ContainsFunc(c.Source, notInHeader) {
		return "source", "is not a URI to append a path to: write https://host, https://host/path or urn:name"
	}
	if strings.ContainsFunc(c.TypePrefix, notInHeader) {
		return "type_prefix",
			"contains white space or non-ASCII characters: write a reversed name, such as com.example."
	}
	return "", ""
}

func notInHeader(c rune) bool { return c <= ' ' || c > '~' || c == '"' || c == '%' }

func isCloudEvents(format string) bool { return format == formatStructured || format == formatBinary }

// notificationEvent converts one notification. In a batch it has its own ID.
func (c *CloudEvents) notificationEvent(id string, n relay.Notification) (event.Event, error) {
	e := c.newEvent(id, n.Topic, n.Hub, n.OccurredAt())
	if about, err := n.Envelope(); err == nil {
		subject := about.Object.ID
		if len(about.Context.Containers) == 1 {
			subject = about.Context.Containers[0]
		}
		if subject != "" {
			e.SetSubject(subject)
		}
	}
	if n.Account != "" {
		e.SetExtension("accountid", n.Account)
	}
	if trace := n.Trace(); trace.Parent != "" {
		e.SetExtension("traceparent", trace.Parent)
		if trace.State != "" {
			e.SetExtension("tracestate", trace.State)
		}
	}
	return e, setData(&e, n.Data)
}

// digestEvent converts a digest. It has a hub only if all listed notifications have the same one.
func (c *CloudEvents) digestEvent(d relay.Delivery) (event.Event, error) {
	data, last, err := d.DigestJSON()
	if err != nil {
		return event.Event{}, err
	}
	hub := d.Digest.Shared["hub"]
	if d.Digest.Count <= len(d.Notifications) {
		hub = d.Notifications[0].Hub
		for _, n := range d.Notifications {
			if n.Hub != hub {
				hub = ""
			}
		}
	}
	e := c.newEvent(d.ID, relay.TopicDigest, hub, last)
	return e, setData(&e, data)
}

func (c *CloudEvents) newEvent(id, topic, hub string, at time.Time) event.Event {
	e := event.New(event.CloudEventsVersionV1)
	e.SetID(id)
	if !strings.HasPrefix(topic, relay.OperationalPrefix) {
		topic = c.TypePrefix + topic
	}
	e.SetType(topic)
	source := strings.TrimRight(c.Source, "/") + "/hubs"
	if hub != "" {
		source += "/" + url.PathEscape(hub)
		e.SetExtension("hubid", hub)
	}
	e.SetSource(source)
	e.SetTime(at)
	return e
}

// setData sets the unchanged data. Only a JSON object keeps the event, or its batch, valid.
func setData(e *event.Event, data []byte) error {
	if trimmed := bytes.TrimSpace(data); len(trimmed) < 2 || trimmed[0] != '{' || trimmed[len(trimmed)-1] != '}' {
		return fmt.Errorf("the data of event %s is not a JSON object", e.ID())
	}
	e.SetDataContentType(event.ApplicationJSON)
	e.DataEncoded = data
	if err := e.Validate(); err != nil {
		return fmt.Errorf("create the CloudEvent %s: %w", e.ID(), err)
	}
	return nil
}

// toEvent converts a delivery that is not a batch.
func (c *CloudEvents) toEvent(d relay.Delivery) (event.Event, error) {
	if d.Digest != nil {
		return c.digestEvent(d)
	}
	if _, err := d.Payload(); err != nil {
		return event.Event{}, err
	}
	return c.notificationEvent(d.ID, d.Notifications[0])
}

// structuredBody returns the body of a delivery in the structured or the batched content mode.
func (c *CloudEvents) structuredBody(d relay.Delivery) ([]byte, error) {
	if d.Batch {
		return d.Join([]byte{'['}, ',', []byte{']'}, func(out []byte, n relay.Notification) ([]byte, error) {
			e, err := c.notificationEvent(n.ID, n)
			return appendEvent(out, &e, err)
		})
	}
	e, err := c.toEvent(d)
	return appendEvent(nil, &e, err)
}

func appendEvent(out []byte, e *event.Event, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	text := bytes.NewBuffer(out)
	if err := event.WriteJson(e, text); err != nil {
		return nil, fmt.Errorf("write the CloudEvent %s: %w", e.ID(), err)
	}
	return text.Bytes(), nil
}

// binaryNames are the headers of the binary content mode with a value per request.
var binaryNames = [...]string{
	"ce-id", "ce-source", "ce-type", "ce-subject", "ce-time", "ce-hubid", "ce-accountid",
	"ce-traceparent", "ce-tracestate",
}

// inBatchedMode reports whether a delivery is sent in the batched content mode. A message in the binary mode is one
// event, and the configuration does not allow batches with it. But a batch that was sealed before the format changed
// must be delivered, which requires the batched mode.
func inBatchedMode(format string, d relay.Delivery) bool {
	return d.Batch && (format == formatStructured || format == formatBinary && len(d.Notifications) > 1)
}

// binaryParts returns the values of binaryNames and the body of one event.
func (c *CloudEvents) binaryParts(d relay.Delivery) (values []string, body []byte, err error) {
	d.Batch = false
	e, err := c.toEvent(d)
	if err != nil {
		return nil, nil, err
	}
	extension := func(name string) string { text, _ := e.Extensions()[name].(string); return text }
	for _, text := range []string{
		e.ID(), e.Source(), e.Type(), e.Subject(), e.Time().Format(time.RFC3339Nano),
		extension("hubid"), extension("accountid"), extension("traceparent"), extension("tracestate"),
	} {
		values = append(values, headerText(text))
	}
	return values, e.Data(), nil
}

// headerText encodes a header value by the HTTP binding of CloudEvents 1.0, section 3.1.3.2: everything except
// printable ASCII, quotes and the percent sign is percent-encoded.
func headerText(s string) string {
	if !strings.ContainsFunc(s, notInHeader) {
		return s
	}
	var out strings.Builder
	for _, c := range []byte(strings.ToValidUTF8(s, "�")) {
		if notInHeader(rune(c)) {
			fmt.Fprintf(&out, "%%%02X", c)
		} else {
			out.WriteByte(c)
		}
	}
	return out.String()
}

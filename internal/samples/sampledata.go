// Package samples builds a realistic notification for each topic, to try templates, filters and sinks without real
// events. The samples are always the same.
//
// Random data, sending, and code for one sink do not belong here.
package samples

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// RelatedIDs reports which lists of the context have entries in notifications of a topic.
type RelatedIDs struct{ Environments, Clusters, Zones, Containers bool }

// RelatedIDsFor returns the related IDs of a topic. They depend on its first word.
func RelatedIDsFor(topic string) RelatedIDs {
	switch family, _, _ := strings.Cut(topic, "."); family {
	case "container":
		return RelatedIDs{Environments: true, Clusters: true, Containers: true}
	case "environment", "stack", "image", "pipeline", "job":
		return RelatedIDs{Environments: true, Clusters: true}
	case "infrastructure", "sdn", "ips_pool":
		return RelatedIDs{Clusters: true}
	case "dns":
		return RelatedIDs{Zones: true}
	}
	return RelatedIDs{}
}

// StatesFor returns possible states of the object in notifications of a topic. It returns nil if the topic has no
// states.
func StatesFor(topic string) []string {
	switch {
	case topic == "container.instance.health.status.changed":
		return []string{"unhealthy", "healthy"}
	case !strings.HasSuffix(topic, "state.changed"):
		return nil
	case strings.HasPrefix(topic, "container."):
		return []string{"running", "starting", "stopping", "stopped"}
	case strings.HasPrefix(topic, "billing."):
		return []string{"paid", "pending", "active"}
	case strings.HasPrefix(topic, "job."),
		strings.HasPrefix(topic, "pipeline.run"), strings.HasPrefix(topic, "stack.build"):
		return []string{"running", "queued", "completed"}
	}
	return []string{"live", "new", "updating"}
}

// The identifiers of a sample.
const (
	ID        = "6922f0000123456789abcdef"
	objectID  = "6922f0000123456789abcd01"
	container = "6922f0000123456789abcd02"
	// Error is the error of samples with an error. It contains characters that most formats must escape.
	Error = "pull: image \"app:1.2\" not found & <none> of 3 mirrors has it\n\tgave up after 30s"
)

// Stored returns the time at which a sample was stored, according to its ID.
func Stored() time.Time { return time.Unix(0x6922f000, 0).UTC() }

type sample struct {
	Topic   string         `json:"topic"`
	Object  map[string]any `json:"object"`
	Context relay.Context  `json:"context"`
	Flags   any            `json:"flags"`
}

// ForTopic returns a sample of a topic as it is read from the log. It supports the relay's operational topics too.
func ForTopic(topic string) relay.Notification {
	s := sample{Topic: topic, Object: map[string]any{"id": objectID, "state": "", "error": ""}}
	s.Context = relay.Context{
		HubID: "6922f0000123456789abcd03", AccountID: "6922f0000123456789abcd04",
		Environments: []string{}, DNSZones: []string{}, Clusters: []string{}, Containers: []string{},
	}
	related := RelatedIDsFor(topic)
	for _, list := range []struct {
		isSet  bool
		values *[]string
		value  string
	}{
		{related.Environments, &s.Context.Environments, "6922f0000123456789abcd05"},
		{related.Clusters, &s.Context.Clusters, "production"},
		{related.Zones, &s.Context.DNSZones, "6922f0000123456789abcd06"},
		{related.Containers, &s.Context.Containers, container},
	} {
		if list.isSet {
			*list.values = []string{list.value}
		}
	}
	if states := StatesFor(topic); len(states) > 0 {
		s.Object["state"] = states[0]
	}
	if strings.HasSuffix(topic, ".error") {
		s.Object["error"] = Error
	}
	s.fillOperational()
	data, _ := json.Marshal(s) // cannot fail: it has only strings and numbers
	return relay.Notification{
		ID: ID, Topic: topic, Hub: s.Context.HubID, Account: s.Context.AccountID, Data: data,
		Cursor: fmt.Sprintf("%d-0", Stored().UnixMilli()),
	}
}

// fillOperational sets the object of an operational topic.
func (s *sample) fillOperational() {
	switch s.Topic {
	case relay.TopicSinkDisabled:
		s.Object["id"], s.Object["state"] = "billing", "disabled"
		s.Object["error"] = "post to hooks.example.com: status 410"
	case relay.TopicSinkRecovered:
		s.Object["id"], s.Object["state"] = "billing", "active"
	case relay.TopicSourceGap:
		s.Object["id"], s.Object["state"] = "platform", "gap"
		s.Object["error"] = "the upstream no longer has what followed the last event"
	case relay.TopicDeadLetterCreated:
		s.Object["state"], s.Object["error"] = "permanent", "post to hooks.example.com: status 400"
		s.Object["sink"], s.Object["topic"] = "billing", "billing.credit.error"
		s.Object["attempts"], s.Object["count"] = 1, 1
	}
}

// Deliveries returns one delivery for each topic.
func Deliveries(topics []string) []relay.Delivery {
	list := make([]relay.Delivery, len(topics))
	for i, topic := range topics {
		n := ForTopic(topic)
		list[i] = relay.Delivery{ID: n.ID, Attempt: 1, Notifications: []relay.Notification{n}}
	}
	return list
}

// Batch returns a batch with one notification for each topic.
func Batch(topics []string) relay.Delivery {
	d := relay.Delivery{ID: "6922f0000123456789abcdff", Attempt: 1, Batch: true}
	for _, topic := range topics {
		d.Notifications = append(d.Notifications, ForTopic(topic))
	}
	return d
}

// Digest returns a digest that lists three notifications and counts two more. topics must not be empty.
func Digest(topics []string) relay.Delivery {
	at := Stored()
	d := relay.Delivery{ID: "6922f0000123456789abcdff", Attempt: 1, Digest: &relay.Digest{
		Count: 5, First: at, Last: at.Add(10 * time.Second), Topics: map[string]int{},
	}}
	for i := range 3 {
		n := ForTopic(topics[i%len(topics)])
		d.Notifications = append(d.Notifications, n)
		d.Digest.Topics[n.Topic]++
	}
	d.Digest.Topics[topics[0]] += 2
	return d
}

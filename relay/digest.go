package relay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// TopicDigest is the topic of a digest. Producers cannot publish it.
const TopicDigest = OperationalPrefix + "digest"

// Payload returns the delivery as JSON:
//
//   - for one notification, its data unchanged;
//   - for a digest, an object with the topic [TopicDigest] and the members of [Delivery.DigestJSON];
//   - for a batch, an array of the unchanged data of its notifications.
//
// The payload is the same in every attempt. The result may share memory with d and must not be modified. Payload
// fails if d is none of these, or if the data of a digest or batch is not a JSON object.
func (d Delivery) Payload() ([]byte, error) {
	switch {
	case d.Batch:
		return d.jsonArray()
	case d.Digest != nil:
		data, _, err := d.digestData(`{"topic":"` + TopicDigest + `",`)
		return data, err
	case len(d.Notifications) != 1:
		return nil, fmt.Errorf("delivery %s has %d events but is neither a digest nor a batch",
			d.ID, len(d.Notifications))
	}
	return d.Notifications[0].Data, nil
}

// WithMetadata returns a copy of d. The data of its notifications ends with the members "id" and "time", see
// [Notification.AppendMetadata].
func (d Delivery) WithMetadata() Delivery {
	list := make([]Notification, len(d.Notifications))
	for i, n := range d.Notifications {
		if n.isJSONObject() {
			end := bytes.LastIndexByte(n.Data, '}')
			n.Data = append(n.AppendMetadata(append(make([]byte, 0, len(n.Data)+70), n.Data[:end]...)), '}')
		}
		list[i] = n
	}
	d.Notifications = list
	return d
}

// DigestJSON returns a digest as {"digest": …, "notifications": […]} with the unchanged data of the listed
// notifications. The form does not depend on their number. The second result is the time of the latest
// notification.
func (d Delivery) DigestJSON() ([]byte, time.Time, error) { return d.digestData("{") }

// digestSummary describes the notifications of a digest. All members are always present.
type digestSummary struct {
	Count int `json:"count"`
	// More is the number of notifications that are not listed.
	More   int               `json:"more"`
	First  time.Time         `json:"first"`
	Last   time.Time         `json:"last"`
	Shared map[string]string `json:"by"`
	Topics map[string]int    `json:"topics"`
}

// digestData returns the JSON of a digest that starts with begin.
func (d Delivery) digestData(begin string) ([]byte, time.Time, error) {
	if d.Digest == nil || len(d.Notifications) == 0 {
		return nil, time.Time{}, fmt.Errorf("digest %s has no event", d.ID)
	}
	summary := d.newDigestSummary()
	head, err := json.Marshal(summary)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("write digest %s: %w", d.ID, err)
	}
	length := len(begin) + len(head) + 64
	for _, n := range d.Notifications {
		if !n.isJSONObject() {
			return nil, time.Time{}, fmt.Errorf("digest %s: data of event %s is not a JSON object", d.ID, n.ID)
		}
		length += len(n.Data) + 1
	}
	out := append(make([]byte, 0, length), begin...)
	out = append(append(out, `"digest":`...), head...)
	out = append(out, `,"notifications":[`...)
	for i, n := range d.Notifications {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, n.Data...)
	}
	return append(out, `]}`...), summary.Last, nil
}

// newDigestSummary completes d.Digest from the notifications. There must be at least one.
func (d Delivery) newDigestSummary() digestSummary {
	listed := len(d.Notifications)
	out := digestSummary{
		Count: max(d.Digest.Count, listed), First: d.Digest.First.UTC(), Last: d.Digest.Last.UTC(),
		Shared: d.Digest.Shared, Topics: d.Digest.Topics,
	}
	out.More = out.Count - listed
	if out.First.IsZero() || out.Last.IsZero() {
		out.First, out.Last = timeRange(d.Notifications)
	}
	if out.Shared == nil {
		out.Shared = map[string]string{}
	}
	if len(out.Topics) == 0 {
		out.Topics = map[string]int{}
		for _, n := range d.Notifications {
			out.Topics[n.Topic]++
		}
	}
	return out
}

// timeRange returns the times of the earliest and the latest notification. The list must not be empty.
func timeRange(list []Notification) (first, last time.Time) {
	first = list[0].OccurredAt()
	last = first
	for _, n := range list[1:] {
		at := n.OccurredAt()
		if at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	return first, last
}

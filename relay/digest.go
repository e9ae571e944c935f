package relay

import (
	"encoding/json"
	"fmt"
	"time"
)

// TopicDigest stands in a digest where a single notification has its topic. No producer can publish it.
const TopicDigest = OperationalPrefix + "digest"

// Payload is a delivery as JSON: of one notification its data as it is, of a digest an object with the topic
// [TopicDigest] and the members of [Delivery.DigestJSON], of a batch an array of the data of each, as it is. It is the same
// in every attempt, and belongs to the delivery: nobody may change it. It fails for a delivery that is none of these, and
// for a digest or a batch of what is no JSON object.
func (d Delivery) Payload() ([]byte, error) {
	switch {
	case d.Batch:
		return d.jsonArray()
	case d.Digest != nil:
		data, _, err := d.digestData(`{"topic":"` + TopicDigest + `",`)
		return data, err
	case len(d.Notifications) != 1:
		return nil, fmt.Errorf("one notification at a time, a digest or a batch can be sent, and delivery %s holds %d and is no digest and no batch",
			d.ID, len(d.Notifications))
	}
	return d.Notifications[0].Data, nil
}

// DigestJSON is a digest as JSON, {"digest": …, "notifications": […]}, each of these byte for byte, and when the latest
// was stored. It has one form whatever the number of notifications, so that a receiver has one thing to expect.
func (d Delivery) DigestJSON() ([]byte, time.Time, error) { return d.digestData("{") }

// digestSummary is what is said of the notifications behind a digest. Every member is always there.
type digestSummary struct {
	Count int `json:"count"`
	// More is how many of them are not listed.
	More   int               `json:"more"`
	First  time.Time         `json:"first"`
	Last   time.Time         `json:"last"`
	Shared map[string]string `json:"by"`
	Topics map[string]int    `json:"topics"`
}

// digestData begins with what is given.
func (d Delivery) digestData(begin string) ([]byte, time.Time, error) {
	if d.Digest == nil || len(d.Notifications) == 0 {
		return nil, time.Time{}, fmt.Errorf("digest %s holds no notification", d.ID)
	}
	about := d.digestDocument()
	head, err := json.Marshal(about)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("write digest %s: %w", d.ID, err)
	}
	length := len(begin) + len(head) + 64
	for _, n := range d.Notifications {
		if !n.isJSONObject() {
			return nil, time.Time{}, fmt.Errorf("digest %s holds notification %s, whose data is no JSON object", d.ID, n.ID)
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
	return append(out, `]}`...), about.Last, nil
}

// digestDocument fills what d.Digest leaves open from the notifications, of which there is one at least.
func (d Delivery) digestDocument() digestSummary {
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

// timeRange is when the earliest and the latest of the list were stored.
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

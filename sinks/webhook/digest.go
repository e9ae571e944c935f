package webhook

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// digestTopic stands where a single notification has its topic. No producer can publish it.
const digestTopic = "hubrelay.digest"

// digest is what a body says of the notifications behind it. Every member is always there.
type digest struct {
	Count int `json:"count"`
	// More is how many of them the body does not hold.
	More   int               `json:"more"`
	First  time.Time         `json:"first"`
	Last   time.Time         `json:"last"`
	By     map[string]string `json:"by"`
	Topics map[string]int    `json:"topics"`
}

// digestBody has one form whatever the number of notifications, so that a receiver of digests has one thing to expect.
func digestBody(format string, d relay.Delivery) ([]byte, error) {
	if len(d.Notifications) == 0 {
		return nil, fmt.Errorf("digest %s holds no notification", d.ID)
	}
	about := newDigest(d)
	head, err := json.Marshal(about)
	if err != nil {
		return nil, fmt.Errorf("write digest %s: %w", d.ID, err)
	}
	length := len(head) + 64
	for _, n := range d.Notifications {
		// One that is no JSON would spoil the whole body.
		if !json.Valid(n.Data) {
			return nil, fmt.Errorf("digest %s holds notification %s, whose data is not JSON", d.ID, n.ID)
		}
		length += len(n.Data) + 1
	}
	if format != formatStandard {
		out := make([]byte, 0, length)
		return appendDigest(append(out, `{"topic":"`+digestTopic+`",`...), head, d.Notifications), nil
	}
	out, err := standardHead(length, digestTopic, about.Last)
	if err != nil {
		return nil, err
	}
	return append(appendDigest(append(out, '{'), head, d.Notifications), '}'), nil
}

// appendDigest ends an object with the members digest and notifications, each of these byte for byte.
func appendDigest(out, head []byte, list []relay.Notification) []byte {
	out = append(append(out, `"digest":`...), head...)
	out = append(out, `,"notifications":[`...)
	for i, n := range list {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, n.Data...)
	}
	return append(out, `]}`...)
}

// newDigest fills what d.Digest leaves open from the notifications.
func newDigest(d relay.Delivery) digest {
	listed := len(d.Notifications)
	out := digest{
		Count: max(d.Digest.Count, listed), First: d.Digest.First.UTC(), Last: d.Digest.Last.UTC(),
		By: d.Digest.By, Topics: d.Digest.Topics,
	}
	out.More = out.Count - listed
	if out.First.IsZero() || out.Last.IsZero() {
		out.First, out.Last = span(d.Notifications)
	}
	if out.By == nil {
		out.By = map[string]string{}
	}
	if len(out.Topics) == 0 {
		out.Topics = map[string]int{}
		for _, n := range d.Notifications {
			out.Topics[n.Topic]++
		}
	}
	return out
}

// span is when the earliest and the latest of the list were stored. The list is not empty.
func span(list []relay.Notification) (first, last time.Time) {
	first = occurred(list[0])
	last = first
	for _, n := range list[1:] {
		at := occurred(n)
		if at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	return first, last
}

// Package tmpl renders the templates of operators: webhook bodies, Slack texts and blocks, and email.
// docs/templates.md is the manual.
//
// The language is text/template, or html/template for HTML, with the functions of Alertmanager. Every rendering ends:
// the number of steps, the depth of calls, the bytes that functions read and write, and the output are limited. The
// limits are the same on every machine, so a template that exceeds one fails everywhere. Time is limited only as a last
// resort, and a rendering that exceeds it may be retried.
//
// Code for one kind of sink does not belong here.
package tmpl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Data is the data of a template: one notification, or the summary of a digest or batch. For a digest or batch, ID is
// the ID of the delivery, Topic is hubrelay.digest, Severity is the highest severity, Time is the time of the latest
// notification, Hub is the hub that all notifications share, and Object and the rest of Context are empty. Only one
// rendering at a time may use it. It embeds no struct, because embedding makes the lookup of every field slower.
type Data struct {
	ID      string
	Topic   string
	Meaning string // the description of the topic
	Hub     string
	Account string
	// Severity is bad, good, change or quiet.
	Severity string
	// Time is the time at which the relay stored the notification.
	Time    time.Time
	Object  relay.Object
	Context relay.Context
	// Sample reports that the notification is made up to test a sink.
	Sample bool

	// Delivery is the ID of the delivery. It is the same in every attempt. For a single notification it equals ID.
	Delivery string
	// Sink is the name of the sink.
	Sink string
	// Digest is nil unless the delivery is a digest or a batch.
	Digest *Digest
	// Notifications are the listed notifications: one, or the first ones of a digest. Their own Notifications are
	// empty.
	Notifications []*Data

	sanitize func(string) string
	raw      []byte                 // JSON of one notification
	loadJSON func() ([]byte, error) // JSON of several notifications
	decoded  bool
	data     any
}

// Digest summarizes the notifications of a digest or batch.
type Digest struct {
	// Count is the number of notifications. More is the number of notifications that are not listed.
	Count, More int
	First, Last time.Time
	// By contains the values that all notifications share: topic, hub or cluster.
	By map[string]string
	// Topics is the number of notifications by topic.
	Topics map[string]int
}

// NewData returns the template data of d. clean is [Options.Clean] of the template.
func NewData(d relay.Delivery, sink string, clean func(string) string) (*Data, error) {
	if len(d.Notifications) == 0 {
		return nil, fmt.Errorf("delivery %s has no events", d.ID)
	}
	highest := relay.SeverityQuiet
	list, items := make([]*Data, len(d.Notifications)), make([]Data, 1+len(d.Notifications))
	for i, n := range d.Notifications {
		item := &items[1+i]
		severity, err := item.fillFrom(n, clean)
		if err != nil {
			return nil, err
		}
		highest = max(highest, severity)
		list[i], item.Sink, item.Delivery = item, sink, d.ID
	}
	if d.Digest == nil && !d.Batch && len(list) == 1 {
		out := &items[0]
		*out = items[1]
		out.Notifications = list
		return out, nil
	}
	out := groupData(d, list, clean)
	out.Severity, out.Sink, out.Delivery = highest.String(), sink, d.ID
	return out, nil
}

// groupData returns the summary of a digest or a batch.
func groupData(d relay.Delivery, list []*Data, clean func(string) string) *Data {
	g := &Digest{Count: len(list), Topics: map[string]int{}, By: map[string]string{}}
	byTime := func(a, b *Data) int { return a.Time.Compare(b.Time) }
	g.First, g.Last = slices.MinFunc(list, byTime).Time, slices.MaxFunc(list, byTime).Time
	if digest := d.Digest; digest != nil {
		g.Count = max(digest.Count, g.Count)
		if !digest.First.IsZero() && !digest.Last.IsZero() {
			g.First, g.Last = digest.First.UTC(), digest.Last.UTC()
		}
		for name, value := range digest.Shared {
			g.By[name] = cleanText(clean, value)
		}
		maps.Copy(g.Topics, digest.Topics)
	}
	if len(g.Topics) == 0 {
		for _, n := range list {
			g.Topics[n.Topic]++
		}
	}
	g.More = g.Count - len(list)
	return &Data{
		ID: d.ID, Topic: relay.TopicDigest, Meaning: fmt.Sprintf("%d events", g.Count), Hub: g.By["hub"],
		Time: g.Last, Context: relay.Context{HubID: g.By["hub"]}, Digest: g, Notifications: list,
		sanitize: clean, loadJSON: d.Payload,
	}
}

func (d *Data) fillFrom(n relay.Notification, clean func(string) string) (relay.Severity, error) {
	e, err := n.Envelope()
	if err != nil {
		return 0, err
	}
	severity := relay.SeverityOf(n.Topic, e.Object)
	c := &e.Context
	if clean != nil {
		e.Object = relay.Object{ID: clean(e.Object.ID), State: clean(e.Object.State), Error: clean(e.Object.Error)}
		c.HubID, c.AccountID = clean(c.HubID), clean(c.AccountID)
		for _, list := range []*[]string{&c.Environments, &c.DNSZones, &c.Clusters, &c.Containers} {
			for i := range *list {
				(*list)[i] = clean((*list)[i])
			}
		}
	}
	*d = Data{
		ID: n.ID, Topic: n.Topic, Meaning: cleanText(clean, topicMeaning(n.Topic)),
		Hub: cleanText(clean, n.Hub), Account: cleanText(clean, n.Account),
		Severity: severity.String(), Time: n.StoredAt(), Object: e.Object, Context: e.Context, Sample: n.IsSample(),
		sanitize: clean, raw: n.Data,
	}
	return severity, nil
}

func cleanText(clean func(string) string, text string) string {
	if clean == nil {
		return text
	}
	return clean(text)
}

// topicMeaning returns the description of a topic, or the topic itself if it is unknown.
func topicMeaning(topic string) string {
	if meaning := topicMeanings()[topic]; meaning != "" {
		return meaning
	}
	return topic
}

// topicMeanings returns the descriptions of all topics.
var topicMeanings = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for _, t := range slices.Concat(relay.Topics(), relay.OperationalTopics()) {
		all[t.Name] = strings.TrimSuffix(t.Meaning, ".")
	}
	return all
})

// hasNoJSON reports whether d has no JSON, as in the check of HTML escaping.
func (d *Data) hasNoJSON() bool { return d.raw == nil && d.loadJSON == nil }

func (d *Data) rawJSON() ([]byte, error) {
	if d.loadJSON != nil {
		return d.loadJSON()
	}
	return d.raw, nil
}

// Raw returns the JSON of the notification as sent to stream clients, or the JSON of the digest as sent to webhooks.
func (d *Data) Raw() (string, error) {
	if d.hasNoJSON() {
		return "{}", nil
	}
	if d.sanitize == nil {
		data, err := d.rawJSON()
		return string(data), err
	}
	v, err := d.Data()
	if err != nil {
		return "", err
	}
	return encodeJSON(v)
}

// Data returns the decoded JSON, for members without a field in Data: .Data.object.previous_state. It decodes once.
func (d *Data) Data() (any, error) {
	if d.decoded || d.hasNoJSON() {
		return d.data, nil
	}
	text, err := d.rawJSON()
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return nil, fmt.Errorf("decode event %s: %w", d.ID, err)
	}
	d.data, d.decoded = d.normalize(v), true
	return d.data, nil
}

// normalize converts numbers to types that templates can compare, and cleans texts and member names.
func (d *Data) normalize(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		if f, err := v.Float64(); err == nil && strings.ContainsAny(v.String(), ".eE") {
			return f
		}
		return v // keeps the digits of an integer that does not fit into an int64
	case string:
		return cleanText(d.sanitize, v)
	case []any:
		for i := range v {
			v[i] = d.normalize(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = d.normalize(v[name])
		}
		return d.sanitizeNames(v)
	}
	return v
}

// sanitizeNames cleans member names. If several names become equal, the member whose name did not change wins,
// otherwise the first in sorted order. A producer therefore cannot replace a member by one whose name looks the same.
func (d *Data) sanitizeNames(members map[string]any) map[string]any {
	if d.sanitize == nil {
		return members
	}
	var changed []string
	for name := range members {
		if d.sanitize(name) != name {
			changed = append(changed, name)
		}
	}
	if changed == nil {
		return members
	}
	out := maps.Clone(members)
	for _, name := range changed {
		delete(out, name)
	}
	slices.Sort(changed)
	for _, name := range changed {
		cleaned := d.sanitize(name)
		if _, exists := out[cleaned]; !exists {
			out[cleaned] = members[name]
		}
	}
	return out
}

// String returns Raw, for {{ . }}.
func (d *Data) String() string {
	text, err := d.Raw()
	if err != nil {
		return ""
	}
	return text
}

// MarshalJSON returns Raw, for {{ toJson . }}.
func (d *Data) MarshalJSON() ([]byte, error) {
	text, err := d.Raw()
	return []byte(text), err
}

// size returns the length of Raw in bytes.
func (d *Data) size() int { return len(d.String()) }

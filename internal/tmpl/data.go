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

// Data is what a template sees: one notification, or what a digest says of many; then ID is the delivery's, Topic
// hubrelay.digest, Severity the greatest, Time that of the latest, Hub that of all, and Object and the rest of Context are
// empty. It belongs to one rendering at a time. Nothing is embedded, since that makes every look at a field a search.
type Data struct {
	ID      string
	Topic   string
	Meaning string // of the topic, in words
	Hub     string
	Account string
	// Severity is bad, good, change or quiet.
	Severity string
	// Time is when the relay stored it.
	Time    time.Time
	Object  relay.Object
	Context relay.Context
	// Sample says that nothing happened: a sink is tested.
	Sample bool

	// Delivery is the same in every attempt; of one notification its id.
	Delivery string
	// Sink is the sink's name.
	Sink string
	// Digest is nil but for a digest or a batch.
	Digest *Digest
	// Notifications are those that are listed: one, or the first of a digest. Those have none themselves.
	Notifications []*Data

	sanitize func(string) string
	raw      []byte                 // of one notification
	loadJSON func() ([]byte, error) // of several
	decoded  bool
	data     any
}

// Digest says what was gathered.
type Digest struct {
	// Count is how many, More how many of those are not listed.
	Count, More int
	First, Last time.Time
	// By is what they have in common: topic, hub or cluster.
	By map[string]string
	// Topics counts them by topic.
	Topics map[string]int
}

// NewData returns what a template sees of d. clean is that of the template's [Options].
func NewData(d relay.Delivery, sink string, clean func(string) string) (*Data, error) {
	if len(d.Notifications) == 0 {
		return nil, fmt.Errorf("delivery %s holds no notification", d.ID)
	}
	worst := relay.SeverityQuiet
	list, room := make([]*Data, len(d.Notifications)), make([]Data, 1+len(d.Notifications))
	for i, n := range d.Notifications {
		one := &room[1+i]
		severity, err := one.fillFrom(n, clean)
		if err != nil {
			return nil, err
		}
		worst = max(worst, severity)
		list[i], one.Sink, one.Delivery = one, sink, d.ID
	}
	if d.Digest == nil && !d.Batch && len(list) == 1 {
		out := &room[0]
		*out = room[1]
		out.Notifications = list
		return out, nil
	}
	out := groupData(d, list, clean)
	out.Severity, out.Sink, out.Delivery = worst.String(), sink, d.ID
	return out, nil
}

// groupData is what is said of a digest or a batch.
func groupData(of relay.Delivery, list []*Data, clean func(string) string) *Data {
	g := &Digest{Count: len(list), Topics: map[string]int{}, By: map[string]string{}}
	byTime := func(a, b *Data) int { return a.Time.Compare(b.Time) }
	g.First, g.Last = slices.MinFunc(list, byTime).Time, slices.MaxFunc(list, byTime).Time
	if said := of.Digest; said != nil {
		g.Count = max(said.Count, g.Count)
		if !said.First.IsZero() && !said.Last.IsZero() {
			g.First, g.Last = said.First.UTC(), said.Last.UTC()
		}
		for name, value := range said.Shared {
			g.By[name] = sanitized(clean, value)
		}
		maps.Copy(g.Topics, said.Topics)
	}
	if len(g.Topics) == 0 {
		for _, n := range list {
			g.Topics[n.Topic]++
		}
	}
	g.More = g.Count - len(list)
	return &Data{
		ID: of.ID, Topic: relay.TopicDigest, Meaning: fmt.Sprintf("%d notifications", g.Count), Hub: g.By["hub"],
		Time: g.Last, Context: relay.Context{HubID: g.By["hub"]}, Digest: g, Notifications: list,
		sanitize: clean, loadJSON: of.Payload,
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
		ID: n.ID, Topic: n.Topic, Meaning: sanitized(clean, topicMeaning(n.Topic)), Hub: sanitized(clean, n.Hub), Account: sanitized(clean, n.Account),
		Severity: severity.String(), Time: n.StoredAt(), Object: e.Object, Context: e.Context, Sample: n.IsSample(),
		sanitize: clean, raw: n.Data,
	}
	return severity, nil
}

func sanitized(clean func(string) string, text string) string {
	if clean == nil {
		return text
	}
	return clean(text)
}

// topicMeaning says in words what a topic says.
func topicMeaning(topic string) string {
	if meaning := topicMeanings()[topic]; meaning != "" {
		return meaning
	}
	return topic
}

// topicMeanings are made once, since they are the same for all.
var topicMeanings = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for _, t := range slices.Concat(relay.Topics(), relay.OperationalTopics()) {
		all[t.Name] = strings.TrimSuffix(t.Meaning, ".")
	}
	return all
})

// hasNoJSON tells that there is no JSON.
func (d *Data) hasNoJSON() bool { return d.raw == nil && d.loadJSON == nil }

func (d *Data) rawJSON() ([]byte, error) {
	if d.loadJSON != nil {
		return d.loadJSON()
	}
	return d.raw, nil
}

// Raw is the JSON as clients of the stream see it, of a digest as webhooks do.
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
	return encode(v)
}

// Data is Raw decoded, for members that have no field here: .Data.object.previous_state. It is decoded once.
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
		return nil, fmt.Errorf("decode notification %s: %w", d.ID, err)
	}
	d.data, d.decoded = d.normalize(v), true
	return d.data, nil
}

// normalize makes numbers what a template can compare with its own, and cleans texts and the names of members.
func (d *Data) normalize(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		if f, err := v.Float64(); err == nil && strings.ContainsAny(v.String(), ".eE") {
			return f
		}
		return v // an integer that no int64 holds keeps its digits
	case string:
		return sanitized(d.sanitize, v)
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

// sanitizeNames cleans the names of members. Of those that become one, that which was clean stays, else the first in their order: nobody
// takes the place of a member by a name that looks the same.
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
		to := d.sanitize(name)
		if _, taken := out[to]; !taken {
			out[to] = members[name]
		}
	}
	return out
}

// String is Raw, for {{ . }}.
func (d *Data) String() string {
	text, err := d.Raw()
	if err != nil {
		return ""
	}
	return text
}

// MarshalJSON is Raw, for {{ toJson . }}.
func (d *Data) MarshalJSON() ([]byte, error) {
	text, err := d.Raw()
	return []byte(text), err
}

// size is about what Raw takes.
func (d *Data) size() int { return len(d.String()) }

package dispatch

import (
	"slices"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
)

// Sink is what dispatch needs to know of a sink.
type Sink struct {
	// Name is the sink's name in the configuration.
	Name   string
	Filter relay.Filter
	// FromStart lets a new sink begin at the log's start rather than at its end.
	FromStart bool
	// Backlog bounds the entries that may wait for the sink, in all partitions together; zero is no bound.
	Backlog int64
}

// maxTopics bounds the memory for topics. A catalog is far smaller; the bound is for logs that hold foreign topics.
const maxTopics = 4096

// Matcher finds the sinks that want a notification. What a topic's sinks are is found out once, and of those only the
// ones that may want the notification's hub and account are looked at: a sink that does not match costs nothing. A
// notification is decoded only where a sink that is left wants to look inside, and once for all of them. It is safe for
// concurrent use.
type Matcher struct {
	sinks         []Sink
	needsEnvelope []bool // by sink: its filter looks inside

	mu     sync.RWMutex
	topics map[string]*candidates
}

// candidates are the sinks that want a topic, each in one place only.
type candidates struct {
	all           []int // no further condition
	byHub         map[string][]int
	byAccount     map[string][]int // no condition on the hub
	needsEnvelope bool             // one of them looks inside
}

// NewMatcher indexes sinks. [Matcher.Match] answers with places in that list, which must not change any more.
func NewMatcher(sinks []Sink) *Matcher {
	m := &Matcher{sinks: sinks, needsEnvelope: make([]bool, len(sinks)), topics: make(map[string]*candidates)}
	for i := range sinks {
		m.needsEnvelope[i] = sinks[i].Filter.NeedsEnvelope()
	}
	return m
}

// Sinks is the list that the matcher was made of.
func (m *Matcher) Sinks() []Sink { return m.sinks }

// Match appends the places of the sinks that want n to dst, in ascending order.
func (m *Matcher) Match(n *relay.Notification, dst []int) []int {
	c := m.candidatesFor(n.Topic)
	before := len(dst)
	dst = append(dst, c.all...)
	parts := 0
	if len(c.all) > 0 {
		parts++
	}
	if len(c.byHub) > 0 {
		for _, i := range c.byHub[n.Hub] {
			if a := m.sinks[i].Filter.Accounts; len(a) == 0 || slices.Contains(a, n.Account) {
				dst = append(dst, i)
			}
		}
		parts++
	}
	if len(c.byAccount) > 0 {
		dst = append(dst, c.byAccount[n.Account]...)
		parts++
	}
	if parts > 1 {
		slices.Sort(dst[before:])
	}
	if c.needsEnvelope {
		dst = m.matchEnvelopes(n, dst, before)
	}
	return dst
}

// matchEnvelopes keeps, of what was found from a place on, the sinks that want what the notification says. What cannot be
// decoded goes to all of them.
func (m *Matcher) matchEnvelopes(n *relay.Notification, found []int, from int) []int {
	first := slices.IndexFunc(found[from:], func(i int) bool { return m.needsEnvelope[i] })
	if first < 0 {
		return found
	}
	e, err := n.Envelope()
	if err != nil {
		return found
	}
	kept := found[:from+first]
	for _, i := range found[from+first:] {
		if !m.needsEnvelope[i] || m.sinks[i].Filter.MatchEnvelope(&e) {
			kept = append(kept, i)
		}
	}
	return kept
}

func (m *Matcher) candidatesFor(topic string) *candidates {
	m.mu.RLock()
	c, ok := m.topics[topic]
	m.mu.RUnlock()
	if ok {
		return c
	}
	c = m.buildCandidates(topic)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.topics) < maxTopics {
		m.topics[topic] = c
	}
	return c
}

func (m *Matcher) buildCandidates(topic string) *candidates {
	c := &candidates{byHub: map[string][]int{}, byAccount: map[string][]int{}}
	for i := range m.sinks {
		f := &m.sinks[i].Filter
		if !f.Topics.Match(topic) {
			continue
		}
		c.needsEnvelope = c.needsEnvelope || m.needsEnvelope[i]
		switch {
		case len(f.Hubs) > 0:
			addOnce(c.byHub, f.Hubs, i)
		case len(f.Accounts) > 0:
			addOnce(c.byAccount, f.Accounts, i)
		default:
			c.all = append(c.all, i)
		}
	}
	return c
}

// addOnce puts sink i under every key, once even where a key is named twice.
func addOnce(to map[string][]int, keys []string, i int) {
	for _, k := range keys {
		if list := to[k]; len(list) == 0 || list[len(list)-1] != i {
			to[k] = append(list, i)
		}
	}
}

package dispatch

import (
	"slices"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
)

// Sink describes a configured sink.
type Sink struct {
	// Name is the name in the configuration.
	Name   string
	Filter relay.Filter
	// Config describes the filter for [Options].RecordSinks.
	Config []byte
	// FromStart makes a new sink begin at the start of the log instead of its end.
	FromStart bool
	// Backlog is the maximum number of queued entries of all partitions; 0 is no limit.
	Backlog int64
	// BacklogBytes is the maximum memory of these entries in Redis; 0 is no limit. It may be exceeded for some seconds.
	BacklogBytes int64
	// CollectsBatches means that the queue keeps events until a batch is complete, so it needs more memory than others.
	CollectsBatches bool
	// AccountShare is the maximum share of the Backlog for the entries of one account, in percent, if there are entries
	// of others. It may be exceeded for a second. 0 and 100 set no limit.
	AccountShare int
}

// maxTopics limits the memory of the index. A catalog is much smaller, but other programs may write any topic.
const maxTopics = 4096

// Matcher finds the sinks that match a notification. It indexes the sinks by topic, hub and account, so sinks that do
// not match cost nothing. If filters of the remaining sinks need the envelope, it decodes the notification once. It
// is safe for concurrent use.
type Matcher struct {
	sinks         []Sink
	needsEnvelope []bool // by sink

	mu     sync.RWMutex
	topics map[string]*candidates
}

// candidates are the sinks whose patterns match a topic. Each sink is in only one of the lists.
type candidates struct {
	all           []int // sinks that accept every hub and account
	byHub         map[string][]int
	byAccount     map[string][]int // sinks that accept every hub
	needsEnvelope bool             // a filter of these sinks needs the envelope
}

// NewMatcher returns a matcher. [Matcher.Match] returns indexes of sinks, which must not be modified afterwards.
func NewMatcher(sinks []Sink) *Matcher {
	m := &Matcher{sinks: sinks, needsEnvelope: make([]bool, len(sinks)), topics: make(map[string]*candidates)}
	for i := range sinks {
		m.needsEnvelope[i] = sinks[i].Filter.NeedsEnvelope()
	}
	return m
}

// Sinks returns the argument of [NewMatcher].
func (m *Matcher) Sinks() []Sink { return m.sinks }

// Match appends the indexes of the sinks that match n to dst, in ascending order.
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

// matchEnvelopes removes the sinks of found[from:] whose filter does not match the envelope. A notification that
// cannot be decoded goes to all sinks.
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

// addOnce adds sink i to the list of every key, also if keys contains duplicates.
func addOnce(to map[string][]int, keys []string, i int) {
	for _, k := range keys {
		if list := to[k]; len(list) == 0 || list[len(list)-1] != i {
			to[k] = append(list, i)
		}
	}
}

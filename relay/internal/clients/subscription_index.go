package clients

import (
	"slices"
	"strings"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

const (
	anyAccount = "*" // sees all accounts
	anyHub     = "*" // sees all hubs
)

// maxIndexedHubs is the maximum number of hubs indexed per account stream, because each hub costs memory in every
// group. A stream with more is indexed under all hubs, and Allows decides.
const maxIndexedHubs = 32

// subscriptionIndex finds the clients that match a notification. Clients that receive the same, apart from their
// grants, form a group. A group is in one bucket for each hub and account that its notifications may have.
type subscriptionIndex struct {
	mu      sync.Mutex // also guards groups and buckets
	groups  map[groupKey]*group
	buckets map[bucketKey]*bucket
	filters map[string]*topicFilter
}

func newIndex() *subscriptionIndex {
	return &subscriptionIndex{
		groups: make(map[groupKey]*group), buckets: make(map[bucketKey]*bucket), filters: make(map[string]*topicFilter),
	}
}

// groupKey identifies a group: the stream, visibility, topic patterns and encoding that its clients share.
type groupKey struct {
	hub        string // empty for an account stream
	account    string // whose notifications are visible
	visibility string
	filter     *topicFilter
	format     frame.Encoding
}

// group is the set of clients with the same groupKey.
type group struct {
	groupKey
	hubs        []string // the visible ones
	bucketSlots []int32  // its index in each bucket
	// snapshot is a copy of members that never changes, so a broadcast reads it without the lock. It is made for the
	// first broadcast after a client joined or left.
	members  []*connection
	snapshot []*connection
	Job      int // one-based index of its job during toFeed, otherwise 0
}

// streamName returns the hub of a hub stream or the account of an account stream.
func (g *group) streamName() (hub, account string) {
	if g.hub != "" {
		return g.hub, ""
	}
	return "", g.account
}

// bucketKey identifies a bucket.
type bucketKey struct {
	stream       streamKind
	hub, account string // a group may have anyHub or anyAccount
}

type streamKind uint8

const (
	hubStream streamKind = iota
	accountStream
)

// routingKeys returns the keys of all notifications that the group may see. A notification without an account is
// visible to all clients of its hub, so each hub also has a key with an empty account.
func (g *group) routingKeys() []bucketKey {
	of := hubStream
	if g.hub == "" {
		of = accountStream
	}
	list := make([]bucketKey, 0, 2*len(g.hubs))
	for _, hub := range g.hubs {
		list = append(list, bucketKey{of, hub, ""})
		if g.account != "" {
			list = append(list, bucketKey{of, hub, g.account})
		}
	}
	return list
}

// indexKeys returns the account and hubs under which the client is indexed. Without a VisibilityKey the clients of a
// group may see different notifications.
func (s *Subscription) indexKeys() (account string, hubs []string) {
	switch account = s.Account; {
	case s.Hub != "" && s.VisibilityKey == "":
		return anyAccount, []string{s.Hub}
	case s.Hub != "":
		return account, []string{s.Hub}
	case s.VisibilityKey == "" || len(s.Hubs) == 0 || len(s.Hubs) > maxIndexedHubs || slices.Contains(s.Hubs, anyHub):
		return account, []string{anyHub}
	}
	return account, s.Hubs
}

// Add adds c to the broadcasts.
func (si *subscriptionIndex) Add(c *connection, s *Subscription) {
	si.mu.Lock()
	defer si.mu.Unlock()
	account, hubs := s.indexKeys()
	as := groupKey{
		hub: s.Hub, account: account, visibility: s.VisibilityKey, filter: si.internFilter(s.Topics), format: c.format,
	}
	g := si.groups[as]
	if g == nil {
		g = &group{groupKey: as, hubs: hubs}
		si.addGroup(g)
	}
	c.group, c.groupIndex = g, len(g.members)
	g.members, g.snapshot = append(g.members, c), nil
}

// addGroup adds a group to its buckets.
func (si *subscriptionIndex) addGroup(g *group) {
	si.groups[g.groupKey] = g
	g.filter.refs++
	places := g.routingKeys()
	g.bucketSlots = make([]int32, len(places))
	for i, p := range places {
		r := si.buckets[p]
		if r == nil {
			r = &bucket{}
			si.buckets[p] = r
		}
		r.add(g, i)
	}
}

// internFilter returns the shared filter of the patterns. The caller holds mu.
func (si *subscriptionIndex) internFilter(patterns relay.Patterns) *topicFilter {
	name := patterns.String()
	f := si.filters[name]
	if f == nil {
		f = &topicFilter{name: name, patterns: patterns, patternCount: countPatterns(name)}
		si.filters[name] = f
	}
	return f
}

// Remove removes c if it is in the index, and its group if that is empty.
func (si *subscriptionIndex) Remove(c *connection) {
	si.mu.Lock()
	defer si.mu.Unlock()
	g := c.group
	if g == nil {
		return
	}
	c.group = nil
	last := g.members[len(g.members)-1]
	g.members[c.groupIndex], last.groupIndex = last, c.groupIndex
	g.members[len(g.members)-1] = nil
	g.members, g.snapshot = g.members[:len(g.members)-1], nil
	if len(g.members) == 0 {
		si.removeGroup(g)
	}
}

func (si *subscriptionIndex) removeGroup(g *group) {
	delete(si.groups, g.groupKey)
	for i, p := range g.routingKeys() {
		r := si.buckets[p]
		if r.remove(int(g.bucketSlots[i])); len(r.entries) == 0 {
			delete(si.buckets, p)
		}
	}
	if g.filter.refs--; g.filter.refs == 0 {
		delete(si.filters, g.filter.name)
	}
}

// groupOf returns the group of a client that receives broadcasts, otherwise nil. Its groupKey may be read without the
// lock.
func (si *subscriptionIndex) groupOf(c *connection) *group {
	si.mu.Lock()
	defer si.mu.Unlock()
	return c.group
}

// Members returns the current clients of the group. The caller holds mu and must not change the result.
func (g *group) Members() []*connection {
	if g.snapshot == nil {
		g.snapshot = append(make([]*connection, 0, len(g.members)), g.members...)
	}
	return g.snapshot
}

// Match calls f for each group of a scope that matches n, without checking grants. It may call f twice for a group.
// The caller holds mu.
func (si *subscriptionIndex) Match(n *relay.Notification, who feedScope, f func(*group)) {
	if who&hubFeeds != 0 {
		si.matchBucket(bucketKey{hubStream, n.Hub, n.Account}, n, f)
		if n.Account != "" {
			si.matchBucket(bucketKey{hubStream, n.Hub, anyAccount}, n, f)
		}
	}
	if who&accountFeeds == 0 {
		return
	}
	si.matchBucket(bucketKey{accountStream, n.Hub, n.Account}, n, f)
	si.matchBucket(bucketKey{accountStream, anyHub, n.Account}, n, f)
	if n.Account != "" {
		si.matchBucket(bucketKey{accountStream, n.Hub, anyAccount}, n, f)
		si.matchBucket(bucketKey{accountStream, anyHub, anyAccount}, n, f)
	}
}

func (si *subscriptionIndex) matchBucket(p bucketKey, n *relay.Notification, f func(*group)) {
	if r := si.buckets[p]; r != nil {
		r.forEachMatch(n, f)
	}
}

// MatchAll calls f for each group of a scope, whatever its topics are. Hub streams must pass the filter in. The
// caller holds mu.
func (si *subscriptionIndex) MatchAll(who feedScope, in func(hub string) bool, f func(*group)) {
	for _, g := range si.groups {
		if g.hub == "" && who&accountFeeds != 0 || g.hub != "" && who&hubFeeds != 0 && in(g.hub) {
			f(g)
		}
	}
}

// topicFilter is a set of topic patterns, shared by groups with equal patterns.
type topicFilter struct {
	name         string
	patterns     relay.Patterns
	patternCount int // the cost of a match
	refs         int // groups
}

func countPatterns(name string) int { return strings.Count(name, ",") + 1 }

package hub

import (
	"slices"
	"strings"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	anyAccount = "*" // the account of clients that see all accounts
	anyHub     = "*" // the hub of clients that see all hubs
)

// maxIndexedHubs is the maximum number of hubs by which an account pipeline is indexed, because each uses memory in
// every group. Clients with more hubs are indexed as if they saw all, and Allows decides.
const maxIndexedHubs = 32

// subscriptionIndex finds the clients for a notification. Clients with equal subscriptions form a group, apart from
// their grants. A group is in the bucket of each routing key that a matching notification may have.
type subscriptionIndex struct {
	mu      sync.Mutex // guards groups and rooms, too
	groups  map[groupKey]*group
	buckets map[routingKey]*routingBucket
	filters map[string]*topicFilter
}

func newIndex() *subscriptionIndex {
	return &subscriptionIndex{
		groups: make(map[groupKey]*group), buckets: make(map[routingKey]*routingBucket),
		filters: make(map[string]*topicFilter),
	}
}

// groupKey is the common part of a group's subscriptions: the pipeline, topic patterns, format and visibility.
type groupKey struct {
	hub        string // or empty for the pipeline of the account
	account    string // whose notifications it may see
	visibility string
	filter     *topicFilter
	format     frameFormat
}

// group is the clients that get the same, but for their grants.
type group struct {
	groupKey
	hubs        []string // visible hubs
	bucketSlots []int32  // its slot in the bucket of each routing key
	// The snapshot of the members is immutable, so a broadcast reads it without the lock. The first broadcast after a
	// change creates a new one.
	members   []*client
	snapshot  []*client
	jobNumber int // the number of its job in the broadcast that is looking for who wants it, from one
}

// pipelineName names the pipeline: by its hub, or its account.
func (g *group) pipelineName() (hub, account string) {
	if g.hub != "" {
		return g.hub, ""
	}
	return "", g.account
}

// routingKey is where groups and notifications meet.
type routingKey struct {
	pipeline     pipeline
	hub, account string // either may be a wildcard for a group
}

type pipeline uint8

const (
	hubPipeline pipeline = iota
	accountPipeline
)

// routingKeys returns the routing keys of visible notifications. All clients of a hub see its notifications without an
// account, which have an empty account here.
func (g *group) routingKeys() []routingKey {
	of := hubPipeline
	if g.hub == "" {
		of = accountPipeline
	}
	list := make([]routingKey, 0, 2*len(g.hubs))
	for _, hub := range g.hubs {
		list = append(list, routingKey{of, hub, ""})
		if g.account != "" {
			list = append(list, routingKey{of, hub, g.account})
		}
	}
	return list
}

// indexKeys returns the account and hubs by which the client is indexed. Without a VisibilityKey, the members of a
// group may see different hubs.
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

// addClient adds c to the recipients of broadcasts.
func (x *subscriptionIndex) addClient(c *client, s *Subscription) {
	x.mu.Lock()
	defer x.mu.Unlock()
	account, hubs := s.indexKeys()
	as := groupKey{
		hub: s.Hub, account: account, visibility: s.VisibilityKey, filter: x.internFilter(s.Topics), format: c.format,
	}
	g := x.groups[as]
	if g == nil {
		g = &group{groupKey: as, hubs: hubs}
		x.addGroup(g)
	}
	c.group, c.groupIndex = g, len(g.members)
	g.members, g.snapshot = append(g.members, c), nil
}

// addGroup takes a group into the rooms of its places.
func (x *subscriptionIndex) addGroup(g *group) {
	x.groups[g.groupKey] = g
	g.filter.refs++
	places := g.routingKeys()
	g.bucketSlots = make([]int32, len(places))
	for i, p := range places {
		r := x.buckets[p]
		if r == nil {
			r = &routingBucket{}
			x.buckets[p] = r
		}
		r.add(g, i)
	}
}

// internFilter returns the one filter of these patterns. The caller holds mu.
func (x *subscriptionIndex) internFilter(patterns relay.Patterns) *topicFilter {
	name := patterns.String()
	f := x.filters[name]
	if f == nil {
		f = &topicFilter{name: name, patterns: patterns, patternCount: countPatterns(name)}
		x.filters[name] = f
	}
	return f
}

// removeClient removes c and unused groups and buckets. It does nothing if c is not in the index.
func (x *subscriptionIndex) removeClient(c *client) {
	x.mu.Lock()
	defer x.mu.Unlock()
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
		x.removeGroup(g)
	}
}

func (x *subscriptionIndex) removeGroup(g *group) {
	delete(x.groups, g.groupKey)
	for i, p := range g.routingKeys() {
		r := x.buckets[p]
		if r.remove(int(g.bucketSlots[i])); len(r.entries) == 0 {
			delete(x.buckets, p)
		}
	}
	if g.filter.refs--; g.filter.refs == 0 {
		delete(x.filters, g.filter.name)
	}
}

// groupOf returns the group of a client that receives broadcasts, otherwise nil. The key of a group may be read without
// the lock.
func (x *subscriptionIndex) groupOf(c *client) *group {
	x.mu.Lock()
	defer x.mu.Unlock()
	return c.group
}

// currentMembers returns the group's clients as they are now. The caller holds mu and must not change what it gets.
func (g *group) currentMembers() []*client {
	if g.snapshot == nil {
		g.snapshot = append(make([]*client, 0, len(g.members)), g.members...)
	}
	return g.snapshot
}

// matchGroups calls f for each group of a scope that wants n, without checking grants. It may call f twice for a group.
// The caller holds mu.
func (x *subscriptionIndex) matchGroups(n *relay.Notification, who feedScope, f func(*group)) {
	if who&hubFeeds != 0 {
		x.matchBucket(routingKey{hubPipeline, n.Hub, n.Account}, n, f)
		if n.Account != "" {
			x.matchBucket(routingKey{hubPipeline, n.Hub, anyAccount}, n, f)
		}
	}
	if who&accountFeeds == 0 {
		return
	}
	x.matchBucket(routingKey{accountPipeline, n.Hub, n.Account}, n, f)
	x.matchBucket(routingKey{accountPipeline, anyHub, n.Account}, n, f)
	if n.Account != "" {
		x.matchBucket(routingKey{accountPipeline, n.Hub, anyAccount}, n, f)
		x.matchBucket(routingKey{accountPipeline, anyHub, anyAccount}, n, f)
	}
}

func (x *subscriptionIndex) matchBucket(p routingKey, n *relay.Notification, f func(*group)) {
	if r := x.buckets[p]; r != nil {
		r.forEachMatch(n, f)
	}
}

// allGroups calls f for each group of a scope, whatever its topics. For hub pipelines, in selects the hubs. The caller
// holds mu.
func (x *subscriptionIndex) allGroups(who feedScope, in func(hub string) bool, f func(*group)) {
	for _, g := range x.groups {
		if g.hub == "" && who&accountFeeds != 0 || g.hub != "" && who&hubFeeds != 0 && in(g.hub) {
			f(g)
		}
	}
}

// topicFilter is topic patterns. Groups with equal ones share it.
type topicFilter struct {
	name         string
	patterns     relay.Patterns
	patternCount int // of asking it: how many patterns there are
	refs         int // groups
}

func countPatterns(name string) int { return strings.Count(name, ",") + 1 }

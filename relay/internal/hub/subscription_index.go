package hub

import (
	"slices"
	"strings"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/hub/frame"
)

const (
	anyAccount = "*" // the account of those who see every account
	anyHub     = "*" // the hub of those who see every hub
)

// maxIndexedHubs bounds the hubs by which an account pipeline is found, since each costs memory for every group. One that sees more is
// looked at as if it saw all, and Allows decides.
const maxIndexedHubs = 32

// subscriptionIndex finds the clients that want a notification. Those who get the same, but for their grants, are a group; and a group is in
// the room of each place that a notification for it may have.
type subscriptionIndex struct {
	mu      sync.Mutex // guards groups and rooms, too
	groups  map[groupKey]*group
	buckets map[bucketKey]*bucket
	filters map[string]*topicFilter
}

func newIndex() *subscriptionIndex {
	return &subscriptionIndex{groups: make(map[groupKey]*group), buckets: make(map[bucketKey]*bucket), filters: make(map[string]*topicFilter)}
}

// groupKey is what the clients of a group have in common: the pipeline, topic patterns, how they get what passes, and what they may
// see.
type groupKey struct {
	hub        string // or empty for the pipeline of the account
	account    string // whose notifications it may see
	visibility string
	filter     *topicFilter
	format     frame.Encoding
}

// group is the clients that get the same, but for their grants.
type group struct {
	groupKey
	hubs        []string // those that it may see
	bucketSlots []int32  // where it is in the room of each of its places
	// The snapshot of the members is never changed once made, so a broadcast walks it without the lock; it is made anew only for
	// the first broadcast after somebody came or left.
	members  []*connection
	snapshot []*connection
	Job      int // the number of its job in the broadcast that is looking for who wants it, from one
}

// PipelineName names the pipeline: by its hub, or its account.
func (g *group) PipelineName() (hub, account string) {
	if g.hub != "" {
		return g.hub, ""
	}
	return "", g.account
}

// bucketKey is where groups and notifications meet.
type bucketKey struct {
	pipeline     pipeline
	hub, account string // of a group's, either may stand for any
}

type pipeline uint8

const (
	hubPipeline pipeline = iota
	accountPipeline
)

// routingKeys are those of the notifications that the group may see. One without an account is seen by all who see its hub, so
// the places of these have an empty account.
func (g *group) routingKeys() []bucketKey {
	of := hubPipeline
	if g.hub == "" {
		of = accountPipeline
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

// indexKeys returns by which account and hubs the subscription's client is found. Without a Sight a group may hold clients that see
// others.
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

// Add makes c one of those who get broadcasts.
func (x *subscriptionIndex) Add(c *connection, s *Subscription) {
	x.mu.Lock()
	defer x.mu.Unlock()
	account, hubs := s.indexKeys()
	as := groupKey{hub: s.Hub, account: account, visibility: s.VisibilityKey, filter: x.internFilter(s.Topics), format: c.format}
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
			r = &bucket{}
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

// Remove removes c, and what nobody uses any more. Nothing happens where c is not in.
func (x *subscriptionIndex) Remove(c *connection) {
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

// groupOf returns the group of a client that gets broadcasts, else nil. Its manner may be looked at without the lock.
func (x *subscriptionIndex) groupOf(c *connection) *group {
	x.mu.Lock()
	defer x.mu.Unlock()
	return c.group
}

// Members returns the group's clients as they are now. The caller holds mu and must not change what it gets.
func (g *group) Members() []*connection {
	if g.snapshot == nil {
		g.snapshot = append(make([]*connection, 0, len(g.members)), g.members...)
	}
	return g.snapshot
}

// Match calls f for each group of an audience that wants n, by what is known without its grants. It may call f twice for one. The
// caller holds mu.
func (x *subscriptionIndex) Match(n *relay.Notification, who feedScope, f func(*group)) {
	if who&hubFeeds != 0 {
		x.matchBucket(bucketKey{hubPipeline, n.Hub, n.Account}, n, f)
		if n.Account != "" {
			x.matchBucket(bucketKey{hubPipeline, n.Hub, anyAccount}, n, f)
		}
	}
	if who&accountFeeds == 0 {
		return
	}
	x.matchBucket(bucketKey{accountPipeline, n.Hub, n.Account}, n, f)
	x.matchBucket(bucketKey{accountPipeline, anyHub, n.Account}, n, f)
	if n.Account != "" {
		x.matchBucket(bucketKey{accountPipeline, n.Hub, anyAccount}, n, f)
		x.matchBucket(bucketKey{accountPipeline, anyHub, anyAccount}, n, f)
	}
}

func (x *subscriptionIndex) matchBucket(p bucketKey, n *relay.Notification, f func(*group)) {
	if r := x.buckets[p]; r != nil {
		r.forEachMatch(n, f)
	}
}

// MatchAll calls f for each group of an audience, of the hubs' for those that in chooses, whatever their topics are. The caller
// holds mu.
func (x *subscriptionIndex) MatchAll(who feedScope, in func(hub string) bool, f func(*group)) {
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

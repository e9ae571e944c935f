package hub

import (
	"slices"
	"strings"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	anyAccount = "*" // the account of those who see every account
	anyHub     = "*" // the hub of those who see every hub
)

// mostPlaces bounds the hubs by which an account pipeline is found, since each costs memory for every group. One that sees more is
// looked at as if it saw all, and Allows decides.
const mostPlaces = 32

// index finds the clients that want a notification. Those who get the same, but for their grants, are a group; and a group is in
// the room of each place that a notification for it may have.
type index struct {
	mu      sync.Mutex // guards groups and rooms, too
	groups  map[manner]*group
	rooms   map[place]*room
	filters map[string]*filter
}

func newIndex() *index {
	return &index{groups: make(map[manner]*group), rooms: make(map[place]*room), filters: make(map[string]*filter)}
}

// manner is what the clients of a group have in common: the pipeline, topic patterns, how they get what passes, and what they may
// see.
type manner struct {
	hub     string // or empty for the pipeline of the account
	account string // whose notifications it may see
	sight   string
	filter  *filter
	form    form
}

// group is the clients that get the same, but for their grants.
type group struct {
	manner
	hubs  []string // those that it may see
	slots []int32  // where it is in the room of each of its places
	// The snapshot of the members is never changed once made, so a broadcast walks it without the lock; it is made anew only for
	// the first broadcast after somebody came or left.
	members  []*client
	snapshot []*client
	job      int // the number of its job in the broadcast that is looking for who wants it, from one
}

// follows names the pipeline: by its hub, or its account.
func (g *group) follows() (hub, account string) {
	if g.hub != "" {
		return g.hub, ""
	}
	return "", g.account
}

// place is where groups and notifications meet.
type place struct {
	pipeline     pipeline
	hub, account string // of a group's, either may stand for any
}

type pipeline uint8

const (
	ofHub pipeline = iota
	ofAccount
)

// places are those of the notifications that the group may see. One without an account is seen by all who see its hub, so
// the places of these have an empty account.
func (g *group) places() []place {
	of := ofHub
	if g.hub == "" {
		of = ofAccount
	}
	list := make([]place, 0, 2*len(g.hubs))
	for _, hub := range g.hubs {
		list = append(list, place{of, hub, ""})
		if g.account != "" {
			list = append(list, place{of, hub, g.account})
		}
	}
	return list
}

// found returns by which account and hubs the subscription's client is found. Without a Sight a group may hold clients that see
// others.
func (s *Subscription) found() (account string, hubs []string) {
	switch account = s.Account; {
	case s.Hub != "" && s.Sight == "":
		return anyAccount, []string{s.Hub}
	case s.Hub != "":
		return account, []string{s.Hub}
	case s.Sight == "" || len(s.Hubs) == 0 || len(s.Hubs) > mostPlaces || slices.Contains(s.Hubs, anyHub):
		return account, []string{anyHub}
	}
	return account, s.Hubs
}

// join makes c one of those who get broadcasts.
func (x *index) join(c *client, s *Subscription) {
	x.mu.Lock()
	defer x.mu.Unlock()
	account, hubs := s.found()
	as := manner{hub: s.Hub, account: account, sight: s.Sight, filter: x.filter(s.Topics), form: c.form}
	g := x.groups[as]
	if g == nil {
		g = &group{manner: as, hubs: hubs}
		x.open(g)
	}
	c.group, c.inGroup = g, len(g.members)
	g.members, g.snapshot = append(g.members, c), nil
}

// open takes a group into the rooms of its places.
func (x *index) open(g *group) {
	x.groups[g.manner] = g
	g.filter.users++
	places := g.places()
	g.slots = make([]int32, len(places))
	for i, p := range places {
		r := x.rooms[p]
		if r == nil {
			r = &room{}
			x.rooms[p] = r
		}
		r.add(g, i)
	}
}

// filter returns the one filter of these patterns. The caller holds mu.
func (x *index) filter(patterns relay.Patterns) *filter {
	name := patterns.String()
	f := x.filters[name]
	if f == nil {
		f = &filter{name: name, patterns: patterns, cost: patternsOf(name)}
		x.filters[name] = f
	}
	return f
}

// leave removes c, and what nobody uses any more. Nothing happens where c is not in.
func (x *index) leave(c *client) {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := c.group
	if g == nil {
		return
	}
	c.group = nil
	last := g.members[len(g.members)-1]
	g.members[c.inGroup], last.inGroup = last, c.inGroup
	g.members[len(g.members)-1] = nil
	g.members, g.snapshot = g.members[:len(g.members)-1], nil
	if len(g.members) == 0 {
		x.close(g)
	}
}

func (x *index) close(g *group) {
	delete(x.groups, g.manner)
	for i, p := range g.places() {
		r := x.rooms[p]
		if r.remove(int(g.slots[i])); len(r.seats) == 0 {
			delete(x.rooms, p)
		}
	}
	if g.filter.users--; g.filter.users == 0 {
		delete(x.filters, g.filter.name)
	}
}

// groupOf returns the group of a client that gets broadcasts, else nil. Its manner may be looked at without the lock.
func (x *index) groupOf(c *client) *group {
	x.mu.Lock()
	defer x.mu.Unlock()
	return c.group
}

// audience returns the group's clients as they are now. The caller holds mu and must not change what it gets.
func (g *group) audience() []*client {
	if g.snapshot == nil {
		g.snapshot = append(make([]*client, 0, len(g.members)), g.members...)
	}
	return g.snapshot
}

// visit calls f for each group of an audience that wants n, by what is known without its grants. It may call f twice for one. The
// caller holds mu.
func (x *index) visit(n *relay.Notification, who audience, f func(*group)) {
	if who&hubRooms != 0 {
		x.enter(place{ofHub, n.Hub, n.Account}, n, f)
		if n.Account != "" {
			x.enter(place{ofHub, n.Hub, anyAccount}, n, f)
		}
	}
	if who&accountRooms == 0 {
		return
	}
	x.enter(place{ofAccount, n.Hub, n.Account}, n, f)
	x.enter(place{ofAccount, anyHub, n.Account}, n, f)
	if n.Account != "" {
		x.enter(place{ofAccount, n.Hub, anyAccount}, n, f)
		x.enter(place{ofAccount, anyHub, anyAccount}, n, f)
	}
}

func (x *index) enter(p place, n *relay.Notification, f func(*group)) {
	if r := x.rooms[p]; r != nil {
		r.visit(n, f)
	}
}

// visitAll calls f for each group of an audience, of the hubs' for those that in chooses, whatever their topics are. The caller
// holds mu.
func (x *index) visitAll(who audience, in func(hub string) bool, f func(*group)) {
	for _, g := range x.groups {
		if g.hub == "" && who&accountRooms != 0 || g.hub != "" && who&hubRooms != 0 && in(g.hub) {
			f(g)
		}
	}
}

// filter is topic patterns. Groups with equal ones share it.
type filter struct {
	name     string
	patterns relay.Patterns
	cost     int // of asking it: how many patterns there are
	users    int // groups
}

func patternsOf(name string) int { return strings.Count(name, ",") + 1 }

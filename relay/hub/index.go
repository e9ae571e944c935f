package hub

import (
	"sync"
	"sync/atomic"

	"github.com/hubrelay/hubrelay/relay"
)

// anyAccount is the account of those who see every account.
const anyAccount = "*"

// index finds the clients that may want a notification: those of its hub's pipeline, and those of the account
// pipelines. A client is in exactly one room.
type index struct {
	mu       sync.RWMutex
	hubs     map[string]*room
	accounts map[string]*room
	filters  map[string]*filter
}

func newIndex() *index {
	return &index{hubs: make(map[string]*room), accounts: make(map[string]*room), filters: make(map[string]*filter)}
}

// room is the clients of one hub, or of the account pipeline of one account.
type room struct {
	key  string
	home map[string]*room // the map of the index that holds it

	mu     sync.Mutex
	groups map[*filter]*group
}

// group is the clients of one room with the same topic patterns.
type group struct {
	room   *room
	filter *filter
	// members and snapshot are guarded by the room's mutex. The snapshot is never changed once made, so a broadcast
	// walks it without the lock; it is made anew only for the first broadcast after somebody came or left.
	members  []*client
	snapshot []*client
}

// filter is topic patterns and what they say of each topic so far. Clients with equal patterns share one.
type filter struct {
	name     string
	patterns relay.Patterns
	users    int // groups; guarded by the index's mutex
	verdicts atomic.Pointer[map[string]bool]
}

// maxVerdicts bounds what a filter remembers; the catalog is much smaller.
const maxVerdicts = 1024

func (f *filter) match(topic string) bool {
	known := f.verdicts.Load()
	if known != nil {
		if verdict, ok := (*known)[topic]; ok {
			return verdict
		}
	}
	verdict := f.patterns.Match(topic)
	next := map[string]bool{topic: verdict}
	if known != nil && len(*known) < maxVerdicts {
		for t, v := range *known {
			next[t] = v
		}
	}
	f.verdicts.Store(&next) // a race loses a verdict, which is then found again
	return verdict
}

// join adds c to the room that s names.
func (x *index) join(c *client, s *Subscription) {
	x.mu.Lock()
	defer x.mu.Unlock()
	home, key := x.hubs, s.Hub
	if s.Hub == "" {
		home, key = x.accounts, s.Account
	}
	r := home[key]
	if r == nil {
		r = &room{key: key, home: home, groups: make(map[*filter]*group, 1)}
		home[key] = r
	}
	name := s.Topics.String()
	f := x.filters[name]
	if f == nil {
		f = &filter{name: name, patterns: s.Topics}
		x.filters[name] = f
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.groups[f]
	if g == nil {
		g = &group{room: r, filter: f}
		r.groups[f] = g
		f.users++
	}
	c.group, c.inGroup = g, len(g.members)
	g.members, g.snapshot = append(g.members, c), nil
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
	r := g.room
	r.mu.Lock()
	defer r.mu.Unlock()
	last := g.members[len(g.members)-1]
	g.members[c.inGroup], last.inGroup = last, c.inGroup
	g.members[len(g.members)-1] = nil
	g.members, g.snapshot = g.members[:len(g.members)-1], nil
	if len(g.members) > 0 {
		return
	}
	delete(r.groups, g.filter)
	if g.filter.users--; g.filter.users == 0 {
		delete(x.filters, g.filter.name)
	}
	if len(r.groups) == 0 {
		delete(r.home, r.key)
	}
}

// audience returns the group's clients as they are now. The caller holds the room's mutex and must not change what it
// gets.
func (g *group) audience() []*client {
	if g.snapshot == nil {
		g.snapshot = append(make([]*client, 0, len(g.members)), g.members...)
	}
	return g.snapshot
}

// visit calls f for each room that may hold clients who want n. An account room sees the notifications of its account,
// and all those without one, since these belong to their hub.
func (x *index) visit(n *relay.Notification, f func(*room)) {
	if r := x.hubs[n.Hub]; r != nil {
		f(r)
	}
	if n.Account == "" {
		for _, r := range x.accounts {
			f(r)
		}
		return
	}
	if r := x.accounts[n.Account]; r != nil && n.Account != anyAccount {
		f(r)
	}
	if r := x.accounts[anyAccount]; r != nil {
		f(r)
	}
}

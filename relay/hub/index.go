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
	key     string
	account bool             // whether the key is an account, or a hub
	home    map[string]*room // the map of the index that holds it

	mu     sync.Mutex
	groups map[manner]*group
}

// manner is what the clients of a group have in common: topic patterns, how they get what passes, and what they may see.
type manner struct {
	filter *filter
	form   form
	sight  string
}

// group is the clients of one room that get the same, but for their grants.
type group struct {
	manner
	room *room
	// members and snapshot are guarded by the room's mutex. The snapshot is never changed once made, so a broadcast
	// walks it without the lock; it is made anew only for the first broadcast after somebody came or left.
	members  []*client
	snapshot []*client
}

// filter is topic patterns and what they say of each topic so far. Clients with equal patterns share one.
type filter struct {
	name     string
	patterns relay.Patterns
	users    int // groups and replays; guarded by the index's mutex
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

// wants tells whether n passes; a resync does whatever the patterns say.
func (f *filter) wants(n *relay.Notification) bool {
	return n.Topic == relay.TopicResync || f.match(n.Topic)
}

// forAll tells whether n is a resync for everybody.
func forAll(n *relay.Notification) bool { return n.Hub == "" && n.Topic == relay.TopicResync }

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
		r = &room{key: key, account: s.Hub == "", home: home, groups: make(map[manner]*group, 1)}
		home[key] = r
	}
	as := manner{x.filter(s.Topics), c.form, s.Sight}
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.groups[as]
	if g == nil {
		g = &group{room: r, manner: as}
		r.groups[as] = g
		as.filter.users++
	}
	c.group, c.inGroup = g, len(g.members)
	g.members, g.snapshot = append(g.members, c), nil
}

// filter returns the one filter of these patterns. The caller holds mu.
func (x *index) filter(patterns relay.Patterns) *filter {
	name := patterns.String()
	f := x.filters[name]
	if f == nil {
		f = &filter{name: name, patterns: patterns}
		x.filters[name] = f
	}
	return f
}

// borrow returns the filter of these patterns for somebody outside the rooms, who gives it back.
func (x *index) borrow(patterns relay.Patterns) *filter {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := x.filter(patterns)
	f.users++
	return f
}

func (x *index) giveBack(f *filter) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.release(f)
}

func (x *index) release(f *filter) {
	if f.users--; f.users == 0 {
		delete(x.filters, f.name)
	}
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
	delete(r.groups, g.manner)
	x.release(g.filter)
	if len(r.groups) == 0 {
		delete(r.home, r.key)
	}
}

// holds says whether c gets broadcasts.
func (x *index) holds(c *client) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return c.group != nil
}

// audience returns the group's clients as they are now. The caller holds the room's mutex and must not change what it
// gets.
func (g *group) audience() []*client {
	if g.snapshot == nil {
		g.snapshot = append(make([]*client, 0, len(g.members)), g.members...)
	}
	return g.snapshot
}

// visitHub calls f for the room of n's hub, where there is one.
func (x *index) visitHub(n *relay.Notification, f func(*room)) {
	if r := x.hubs[n.Hub]; r != nil {
		f(r)
	}
}

// visitAccounts calls f for each account's room that may hold clients who want n: that of its account, and for one
// without an account all, since it belongs to its hub.
func (x *index) visitAccounts(n *relay.Notification, f func(*room)) {
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

// visitAll calls f for the rooms that a resync for everybody is meant for: of the hubs those that in chooses, and those of
// accounts where it has come by the partition that tells them.
func (x *index) visitAll(n *relay.Notification, who audience, in func(hub string) bool, f func(*room)) {
	if who&hubRooms != 0 {
		for hub, r := range x.hubs {
			if in(hub) {
				f(r)
			}
		}
	}
	if who&accountRooms != 0 && n.Account == anyAccount {
		for _, r := range x.accounts {
			f(r)
		}
	}
}

// rooms appends to list those of an audience, and of the hubs those that in chooses.
func (x *index) rooms(list []*room, who audience, in func(hub string) bool) []*room {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if who&hubRooms != 0 {
		for hub, r := range x.hubs {
			if in(hub) {
				list = append(list, r)
			}
		}
	}
	if who&accountRooms != 0 {
		for _, r := range x.accounts {
			list = append(list, r)
		}
	}
	return list
}

package hub

import (
	"math/bits"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// cheap is how many patterns are asked anew for each notification, which takes less than a delivery to one client. Most rooms
	// have fewer.
	cheap = 32
	// mostTopics bounds the topics whose verdicts are kept. A catalog has about a hundred.
	mostTopics = 256
)

// room is the groups that may see the notifications of one place. Where there are many patterns it keeps which of the groups want
// a topic, a bit for each, so that those who do not are not even looked at. A group is asked about a topic once, when that comes:
// neither who comes and goes with ever other patterns nor ever other topics make more of it than that.
type room struct {
	seats []seat
	cost  int // of asking all
	// verdicts of the seats, 64 in each element. They may end before the seats do.
	verdicts map[string][]verdicts
}

// seat is the place of a group, and which of the group's seats it is.
type seat struct {
	group *group
	nth   int32
}

// verdicts are what 64 seats say of a topic, as far as they were asked.
type verdicts struct{ asked, wanted uint64 }

const perWord = 64

// add gives a group its nth seat.
func (r *room) add(g *group, nth int) {
	g.slots[nth] = int32(len(r.seats))
	r.seats = append(r.seats, seat{g, int32(nth)})
	r.cost += g.filter.cost
}

// remove frees a seat, which the last takes.
func (r *room) remove(slot int) {
	last := len(r.seats) - 1
	r.cost -= r.seats[slot].group.filter.cost
	moved := r.seats[last]
	r.seats[slot] = moved
	moved.group.slots[moved.nth] = int32(slot)
	r.seats[last] = seat{}
	r.seats = r.seats[:last]
	if r.cost <= cheap {
		r.verdicts = nil
	}
	for _, list := range r.verdicts {
		asked, wanted := withdraw(list, last)
		if slot < last {
			enter(list, slot, asked, wanted)
		}
	}
}

// withdraw returns the verdict of a seat, and leaves none.
func withdraw(list []verdicts, slot int) (asked, wanted bool) {
	if slot/perWord >= len(list) {
		return false, false
	}
	v, bit := &list[slot/perWord], uint64(1)<<(slot%perWord)
	asked, wanted = v.asked&bit != 0, v.wanted&bit != 0
	v.asked &^= bit
	v.wanted &^= bit
	return asked, wanted
}

// enter gives a seat another verdict.
func enter(list []verdicts, slot int, asked, wanted bool) {
	if slot/perWord >= len(list) {
		return
	}
	v, bit := &list[slot/perWord], uint64(1)<<(slot%perWord)
	v.asked &^= bit
	v.wanted &^= bit
	if asked {
		v.asked |= bit
	}
	if wanted {
		v.wanted |= bit
	}
}

// visit calls f for the groups that want n. A resync passes whatever the patterns say.
func (r *room) visit(n *relay.Notification, f func(*group)) {
	switch {
	case n.Topic == relay.TopicResync:
		for i := range r.seats {
			f(r.seats[i].group)
		}
	case r.cost <= cheap:
		for i := range r.seats {
			if g := r.seats[i].group; g.filter.patterns.Match(n.Topic) {
				f(g)
			}
		}
	default:
		for i, v := range r.ask(n.Topic) {
			for left := v.wanted; left != 0; left &= left - 1 {
				f(r.seats[i*perWord+bits.TrailingZeros64(left)].group)
			}
		}
	}
}

// ask returns what all say of a topic, and asks those who were not asked yet.
func (r *room) ask(topic string) []verdicts {
	list := r.verdicts[topic]
	if missing := (len(r.seats)+perWord-1)/perWord - len(list); missing > 0 {
		list = append(list, make([]verdicts, missing)...)
		r.keep(topic, list)
	}
	for at := 0; at < len(r.seats); at += perWord {
		v, here := &list[at/perWord], ^uint64(0)
		if n := len(r.seats) - at; n < perWord {
			here = 1<<n - 1
		}
		for left := here &^ v.asked; left != 0; left &= left - 1 {
			if r.seats[at+bits.TrailingZeros64(left)].group.filter.patterns.Match(topic) {
				v.wanted |= left & -left
			}
		}
		v.asked |= here
	}
	return list
}

// keep keeps the verdicts of a topic, instead of some other's where that are too many.
func (r *room) keep(topic string, list []verdicts) {
	if r.verdicts == nil {
		r.verdicts = make(map[string][]verdicts)
	}
	if _, ok := r.verdicts[topic]; !ok && len(r.verdicts) >= mostTopics {
		for other := range r.verdicts {
			delete(r.verdicts, other)
			break
		}
	}
	r.verdicts[topic] = list
}

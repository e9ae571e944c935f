package hub

import (
	"math/bits"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// maxUncachedPatterns is how many patterns are asked anew for each notification, which takes less than a delivery to one client. Most rooms
	// have fewer.
	maxUncachedPatterns = 32
	// maxCachedTopics bounds the topics whose verdicts are kept. A catalog has about a hundred.
	maxCachedTopics = 256
)

// bucket is the groups that may see the notifications of one place. Where there are many patterns it keeps which of the groups want
// a topic, a bit for each, so that those who do not are not even looked at. A group is asked about a topic once, when that comes:
// neither who comes and goes with ever other patterns nor ever other topics make more of it than that.
type bucket struct {
	entries      []bucketEntry
	patternCount int // of asking all
	// matchCache of the seats, 64 in each element. They may end before the seats do.
	matchCache map[string][]matchBits
}

// bucketEntry is the place of a group, and which of the group's seats it is.
type bucketEntry struct {
	group    *group
	keyIndex int32
}

// matchBits are what 64 seats say of a topic, as far as they were asked.
type matchBits struct{ known, matched uint64 }

const bitsPerWord = 64

// add gives a group its nth seat.
func (r *bucket) add(g *group, nth int) {
	g.bucketSlots[nth] = int32(len(r.entries))
	r.entries = append(r.entries, bucketEntry{g, int32(nth)})
	r.patternCount += g.filter.patternCount
}

// remove frees a seat, which the last takes.
func (r *bucket) remove(slot int) {
	last := len(r.entries) - 1
	r.patternCount -= r.entries[slot].group.filter.patternCount
	moved := r.entries[last]
	r.entries[slot] = moved
	moved.group.bucketSlots[moved.keyIndex] = int32(slot)
	r.entries[last] = bucketEntry{}
	r.entries = r.entries[:last]
	if r.patternCount <= maxUncachedPatterns {
		r.matchCache = nil
	}
	for _, list := range r.matchCache {
		asked, wanted := takeMatch(list, last)
		if slot < last {
			setMatch(list, slot, asked, wanted)
		}
	}
}

// takeMatch returns the verdict of a seat, and leaves none.
func takeMatch(list []matchBits, slot int) (asked, wanted bool) {
	if slot/bitsPerWord >= len(list) {
		return false, false
	}
	v, bit := &list[slot/bitsPerWord], uint64(1)<<(slot%bitsPerWord)
	asked, wanted = v.known&bit != 0, v.matched&bit != 0
	v.known &^= bit
	v.matched &^= bit
	return asked, wanted
}

// setMatch gives a seat another verdict.
func setMatch(list []matchBits, slot int, asked, wanted bool) {
	if slot/bitsPerWord >= len(list) {
		return
	}
	v, bit := &list[slot/bitsPerWord], uint64(1)<<(slot%bitsPerWord)
	v.known &^= bit
	v.matched &^= bit
	if asked {
		v.known |= bit
	}
	if wanted {
		v.matched |= bit
	}
}

// forEachMatch calls f for the groups that want n. A resync passes whatever the patterns say.
func (r *bucket) forEachMatch(n *relay.Notification, f func(*group)) {
	switch {
	case n.Topic == relay.TopicResync:
		for i := range r.entries {
			f(r.entries[i].group)
		}
	case r.patternCount <= maxUncachedPatterns:
		for i := range r.entries {
			if g := r.entries[i].group; g.filter.patterns.Match(n.Topic) {
				f(g)
			}
		}
	default:
		for i, v := range r.matchesFor(n.Topic) {
			for left := v.matched; left != 0; left &= left - 1 {
				f(r.entries[i*bitsPerWord+bits.TrailingZeros64(left)].group)
			}
		}
	}
}

// matchesFor returns what all say of a topic, and asks those who were not asked yet.
func (r *bucket) matchesFor(topic string) []matchBits {
	list := r.matchCache[topic]
	if missing := (len(r.entries)+bitsPerWord-1)/bitsPerWord - len(list); missing > 0 {
		list = append(list, make([]matchBits, missing)...)
		r.cacheMatches(topic, list)
	}
	for at := 0; at < len(r.entries); at += bitsPerWord {
		v, here := &list[at/bitsPerWord], ^uint64(0)
		if n := len(r.entries) - at; n < bitsPerWord {
			here = 1<<n - 1
		}
		for left := here &^ v.known; left != 0; left &= left - 1 {
			if r.entries[at+bits.TrailingZeros64(left)].group.filter.patterns.Match(topic) {
				v.matched |= left & -left
			}
		}
		v.known |= here
	}
	return list
}

// cacheMatches keeps the verdicts of a topic, instead of some other's where that are too many.
func (r *bucket) cacheMatches(topic string, list []matchBits) {
	if r.matchCache == nil {
		r.matchCache = make(map[string][]matchBits)
	}
	if _, ok := r.matchCache[topic]; !ok && len(r.matchCache) >= maxCachedTopics {
		for other := range r.matchCache {
			delete(r.matchCache, other)
			break
		}
	}
	r.matchCache[topic] = list
}

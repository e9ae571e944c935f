package hub

import (
	"math/bits"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// maxUncachedPatterns is the number of patterns that are evaluated for each notification, which takes less time
	// than a delivery. Most buckets have fewer.
	maxUncachedPatterns = 32
	// maxCachedTopics bounds the topics whose verdicts are kept. A catalog has about a hundred.
	maxCachedTopics = 256
)

// routingBucket contains the groups that may see the notifications of one routing key. With many patterns it caches a
// bit per group and topic, so groups that do not want a topic are not visited. A group is evaluated once per topic.
// Changing clients or topics do not increase its size.
type routingBucket struct {
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

// matchBits are the cached results of 64 slots for a topic.
type matchBits struct{ known, matched uint64 }

const bitsPerWord = 64

// add gives a group its nth seat.
func (r *routingBucket) add(g *group, nth int) {
	g.bucketSlots[nth] = int32(len(r.entries))
	r.entries = append(r.entries, bucketEntry{g, int32(nth)})
	r.patternCount += g.filter.patternCount
}

// remove frees a seat, which the last takes.
func (r *routingBucket) remove(slot int) {
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
func (r *routingBucket) forEachMatch(n *relay.Notification, f func(*group)) {
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

// matchesFor returns the results of all groups for a topic, and evaluates missing ones.
func (r *routingBucket) matchesFor(topic string) []matchBits {
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

// cacheMatches caches the results of a topic, and evicts another one beyond the limit.
func (r *routingBucket) cacheMatches(topic string, list []matchBits) {
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

package clients

import (
	"math/bits"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// maxUncachedPatterns is the number of patterns that a bucket matches without a cache. That costs less than one
	// write, and most buckets have fewer patterns.
	maxUncachedPatterns = 32
	// maxCachedTopics is the maximum number of topics in matchCache. The catalog has about a hundred.
	maxCachedTopics = 256
)

// bucket holds the groups that may see the notifications of one bucketKey. With many patterns it caches which groups
// match a topic, one bit per group, so it skips the others. A group is matched with a topic once, when that topic
// occurs; the cost is limited for any number of patterns and topics.
type bucket struct {
	entries      []bucketEntry
	patternCount int // of all groups
	// matchCache has the results by topic, 64 entries per element. A list may be shorter than entries.
	matchCache map[string][]matchBits
}

// bucketEntry is a group and the index of this entry in its bucketSlots.
type bucketEntry struct {
	group    *group
	keyIndex int32
}

// matchBits are the results of 64 entries for a topic.
type matchBits struct{ known, matched uint64 }

const bitsPerWord = 64

// add adds an entry for the bucketSlots element nth of a group.
func (b *bucket) add(g *group, nth int) {
	g.bucketSlots[nth] = int32(len(b.entries))
	b.entries = append(b.entries, bucketEntry{g, int32(nth)})
	b.patternCount += g.filter.patternCount
}

// remove removes an entry and moves the last one to its slot.
func (b *bucket) remove(slot int) {
	last := len(b.entries) - 1
	b.patternCount -= b.entries[slot].group.filter.patternCount
	moved := b.entries[last]
	b.entries[slot] = moved
	moved.group.bucketSlots[moved.keyIndex] = int32(slot)
	b.entries[last] = bucketEntry{}
	b.entries = b.entries[:last]
	if b.patternCount <= maxUncachedPatterns {
		b.matchCache = nil
	}
	for _, list := range b.matchCache {
		asked, wanted := takeMatch(list, last)
		if slot < last {
			setMatch(list, slot, asked, wanted)
		}
	}
}

// takeMatch returns and clears the result of an entry.
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

// setMatch sets the result of an entry.
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

// forEachMatch calls f for the groups that match n. A resync matches all patterns.
func (b *bucket) forEachMatch(n *relay.Notification, f func(*group)) {
	switch {
	case n.Topic == relay.TopicResync:
		for i := range b.entries {
			f(b.entries[i].group)
		}
	case b.patternCount <= maxUncachedPatterns:
		for i := range b.entries {
			if g := b.entries[i].group; g.filter.patterns.Match(n.Topic) {
				f(g)
			}
		}
	default:
		for i, v := range b.matchesFor(n.Topic) {
			for left := v.matched; left != 0; left &= left - 1 {
				f(b.entries[i*bitsPerWord+bits.TrailingZeros64(left)].group)
			}
		}
	}
}

// matchesFor returns the results for a topic. It computes missing ones.
func (b *bucket) matchesFor(topic string) []matchBits {
	list := b.matchCache[topic]
	if missing := (len(b.entries)+bitsPerWord-1)/bitsPerWord - len(list); missing > 0 {
		list = append(list, make([]matchBits, missing)...)
		b.cacheMatches(topic, list)
	}
	for at := 0; at < len(b.entries); at += bitsPerWord {
		v, here := &list[at/bitsPerWord], ^uint64(0)
		if n := len(b.entries) - at; n < bitsPerWord {
			here = 1<<n - 1
		}
		for left := here &^ v.known; left != 0; left &= left - 1 {
			if b.entries[at+bits.TrailingZeros64(left)].group.filter.patterns.Match(topic) {
				v.matched |= left & -left
			}
		}
		v.known |= here
	}
	return list
}

// cacheMatches stores the results for a topic and evicts another topic if there are too many.
func (b *bucket) cacheMatches(topic string, list []matchBits) {
	if b.matchCache == nil {
		b.matchCache = make(map[string][]matchBits)
	}
	if _, ok := b.matchCache[topic]; !ok && len(b.matchCache) >= maxCachedTopics {
		for other := range b.matchCache {
			delete(b.matchCache, other)
			break
		}
	}
	b.matchCache[topic] = list
}

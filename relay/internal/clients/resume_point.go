package clients

import (
	"sort"

	"github.com/hubrelay/hubrelay/internal/streamid"
)

// resumePoint is the place in a feed of a client that has seen the log up to its own positions.
type resumePoint struct {
	// next is the sequence number of the first entry that may be new to the client.
	next uint64
	// partitionsAhead counts the partitions of which the client has seen some after next. If it is zero, the
	// client has seen exactly the entries before next, so it can use the cursors of the feed.
	partitionsAhead int
	unverified      []unverifiedPosition
	// missingPartition is a partition with entries that are new to the client but no longer in the feed, or -1.
	missingPartition int
}

// unverifiedPosition is a partition whose entry at the client's position is not in the feed. It may be missing in the
// log, too.
type unverifiedPosition struct {
	slot    int
	hasTail bool // the feed has all entries after it, so no segment is needed
}

// locate returns the resumePoint for positions. A position that matches the feed gets the hash of the feed's entry.
// Broadcasts wait for it, so it must not look at all entries. The caller holds mu.
func (f *feed) locate(at []streamid.Position) resumePoint {
	m := resumePoint{next: f.nextSeq(), missingPartition: -1}
	for s := range at {
		last := f.positions[s] // the last entry the client has seen, if it is in the feed
		if list, i := f.seqs[s], f.countUpTo(s, at[s]); i < len(list) {
			last, m.next = f.entryAt(list[i]).before, min(m.next, list[i])
		}
		kept := at[s].Compare(f.keptFrom[s]) >= 0
		if at[s].Matches(last) {
			at[s] = last
		} else {
			m.unverified = append(m.unverified, unverifiedPosition{s, kept})
		}
		// The oldest position comes first.
		if !kept && (m.missingPartition < 0 || at[s].Compare(at[m.missingPartition]) < 0) {
			m.missingPartition = s
		}
	}
	for s := range at {
		if f.positionBefore(s, m.next).Compare(at[s]) < 0 {
			m.partitionsAhead++
		}
	}
	return m
}

// countUpTo returns the number of entries of a partition that are not after a position.
func (f *feed) countUpTo(slot int, at streamid.Position) int {
	list := f.seqs[slot]
	return sort.Search(len(list), func(i int) bool { return f.entryAt(list[i]).after.Compare(at) > 0 })
}

// positionBefore returns the position of a partition before the entry with the given sequence number.
func (f *feed) positionBefore(slot int, number uint64) streamid.Position {
	list := f.seqs[slot]
	i := sort.Search(len(list), func(i int) bool { return list[i] >= number })
	if i == len(list) {
		return f.positions[slot]
	}
	return f.entryAt(list[i]).before
}

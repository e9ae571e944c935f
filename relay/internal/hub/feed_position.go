package hub

import (
	"sort"

	"github.com/hubrelay/hubrelay/internal/streamid"
)

// feedPosition is the place of a client in a feed, given its own positions.
type feedPosition struct {
	// next is the number of the first entry that may be new to him.
	next uint64
	// partitionsAhead is the number of partitions in which the client is ahead of this place. If it is zero, the feed's
	// cursors are also the client's.
	partitionsAhead int
	unverified      []unverifiedPosition
	// missingPartition is a partition whose missing entries are not in the history, or -1.
	missingPartition int
}

// unverifiedPosition is a partition whose position was not found in the history. The log may not contain it.
type unverifiedPosition struct {
	slot    int
	hasTail bool // all later entries are in the history, so the log need not be read
}

// locate returns the place of a client, and replaces equal positions by the feed's own. It must not scan the history,
// because broadcasts wait for it. The caller holds mu.
func (l *feed) locate(at []streamid.Position) feedPosition {
	m := feedPosition{next: l.nextSeq(), missingPartition: -1}
	for s := range at {
		last := l.positions[s] // what he has seen last, if it is in the line
		if list, i := l.seqs[s], l.countUpTo(s, at[s]); i < len(list) {
			last, m.next = l.entryAt(list[i]).before, min(m.next, list[i])
		}
		kept := at[s].Compare(l.keptFrom[s]) >= 0
		if at[s].Matches(last) {
			at[s] = last
		} else {
			m.unverified = append(m.unverified, unverifiedPosition{s, kept})
		}
		// the oldest missing position
		if !kept && (m.missingPartition < 0 || at[s].Compare(at[m.missingPartition]) < 0) {
			m.missingPartition = s
		}
	}
	for s := range at {
		if l.positionBefore(s, m.next).Compare(at[s]) < 0 {
			m.partitionsAhead++
		}
	}
	return m
}

// countUpTo returns the number of kept entries of a partition up to a position.
func (l *feed) countUpTo(slot int, at streamid.Position) int {
	list := l.seqs[slot]
	return sort.Search(len(list), func(i int) bool { return l.entryAt(list[i]).after.Compare(at) > 0 })
}

// positionBefore is the position of a partition before the entry with that number.
func (l *feed) positionBefore(slot int, number uint64) streamid.Position {
	list := l.seqs[slot]
	i := sort.Search(len(list), func(i int) bool { return list[i] >= number })
	if i == len(list) {
		return l.positions[slot]
	}
	return l.entryAt(list[i]).before
}

package hub

import (
	"sort"

	"github.com/hubrelay/hubrelay/internal/streamid"
)

// resumePoint is where somebody is in a line who has seen the log up to his own positions.
type resumePoint struct {
	// next is the number of the first entry that may be new to him.
	next uint64
	// partitionsAhead counts the partitions of which he has seen more than the line's first next entries hold. Where it is zero he
	// has seen exactly these, and the line's cursors are his.
	partitionsAhead int
	unverified      []unverifiedPosition
	// missingPartition is a partition of which he lacks something that is not kept, or -1.
	missingPartition int
}

// unverifiedPosition is a partition whose entry at somebody's position was not met: it may not be in the log at all.
type unverifiedPosition struct {
	slot    int
	hasTail bool // whether all behind it is: then nothing more has to be read
}

// locate returns where somebody with these positions is, and takes over the line's own where they are his. Broadcasts wait
// meanwhile, so that it must not look at all that is kept. The caller holds mu.
func (l *feed) locate(at []streamid.Position) resumePoint {
	m := resumePoint{next: l.nextSeq(), missingPartition: -1}
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
		if !kept && (m.missingPartition < 0 || at[s].Compare(at[m.missingPartition]) < 0) { // the one that is furthest behind
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

// countUpTo is how many of the kept entries of a partition are not behind a position.
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

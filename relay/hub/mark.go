package hub

import (
	"sort"

	"github.com/hubrelay/hubrelay/relay/cursor"
)

// mark is where somebody is in a line who has seen the log up to his own positions.
type mark struct {
	// next is the number of the first entry that may be new to him.
	next uint64
	// ahead counts the partitions of which he has seen more than the line's first next entries hold. Where it is zero he
	// has seen exactly these, and the line's cursors are his.
	ahead    int
	unproved []doubt
	// missing is a partition of which he lacks something that is not kept, or -1.
	missing int
}

// doubt is a partition whose entry at somebody's position was not met: it may not be in the log at all.
type doubt struct {
	slot int
	kept bool // whether all behind it is: then nothing more has to be read
}

// find returns where somebody with these positions is, and takes over the line's own where they are his. Broadcasts wait
// meanwhile, so that it must not look at all that is kept. The caller holds mu.
func (l *line) find(at []cursor.Position) mark {
	m := mark{next: l.end(), missing: -1}
	for s := range at {
		last := l.at[s] // what he has seen last, if it is in the line
		if list, i := l.numbers[s], l.behind(s, at[s]); i < len(list) {
			last, m.next = l.entry(list[i]).prev, min(m.next, list[i])
		}
		kept := at[s].Compare(l.floor[s]) >= 0
		if at[s].Fits(last) {
			at[s] = last
		} else {
			m.unproved = append(m.unproved, doubt{s, kept})
		}
		if !kept && (m.missing < 0 || at[s].Compare(at[m.missing]) < 0) { // the one that is furthest behind
			m.missing = s
		}
	}
	for s := range at {
		if l.before(s, m.next).Compare(at[s]) < 0 {
			m.ahead++
		}
	}
	return m
}

// behind is how many of the kept entries of a partition are not behind a position.
func (l *line) behind(slot int, at cursor.Position) int {
	list := l.numbers[slot]
	return sort.Search(len(list), func(i int) bool { return l.entry(list[i]).at.Compare(at) > 0 })
}

// before is the position of a partition before the entry with that number.
func (l *line) before(slot int, number uint64) cursor.Position {
	list := l.numbers[slot]
	i := sort.Search(len(list), func(i int) bool { return list[i] >= number })
	if i == len(list) {
		return l.at[slot]
	}
	return l.entry(list[i]).prev
}

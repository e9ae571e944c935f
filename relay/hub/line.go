package hub

import (
	"sync"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/cursor"
)

// line is an order in which this node broadcasts: that of one partition, which hub pipelines follow, or the node's merge
// of all partitions, which account pipelines follow. With one partition both are the same line.
//
// Its lock is held while a notification is given to all clients that follow the line. Whoever holds it knows that
// everybody has everything up to the line's position, so that is where a client is added that has seen as much.
type line struct {
	partitions int // of the log
	first      int // the partition of the first position
	most       int // bytes that may be kept
	deflater   *deflater

	mu sync.Mutex
	// at is the position of the last broadcast in each partition, and floor the one behind which everything is kept.
	at, floor []cursor.Position
	// kept is the recent history in the line's order: from head on, the first of which has the number base.
	kept []*entry
	head int
	base uint64
	size int
	// breaks counts the times that a partition's positions did not go on where they were.
	breaks int
	moved  chan struct{} // closed by the next broadcast; nil where nobody waits
	text   []byte
}

// entry is one notification in a line.
type entry struct {
	n    *relay.Notification
	slot int // its partition, counted from the line's first
	// prev is the position before it and at the one behind it.
	prev, at cursor.Position
	frames   [forms][]byte // made when somebody wants one
	// saved is by how much the compressed frames are shorter, without and with a cursor.
	saved [withCursor + 1]int32
}

// entryOverhead is about what an entry takes beside its notification, which is there twice: as it came and as a frame.
const entryOverhead = 384

// makeFrame makes a frame that all clients of a form share. The cursor is needed where they get one.
func (e *entry) makeFrame(as form, cursor []byte, d *deflater, live bool) {
	if as&deflated == 0 {
		e.frames[as] = newFrame(e.n.Data, as, cursor)
		return
	}
	plain, saved := as&^deflated, 0
	e.frames[as] = compose(func(parts ...[]byte) (frame []byte) {
		frame, saved = d.frame(live, parts)
		return frame
	}, e.n.Data, as, cursor)
	e.saved[plain] = int32(saved)
	if e.frames[as] != nil {
		return
	}
	if e.frames[plain] == nil {
		e.frames[plain] = newFrame(e.n.Data, plain, cursor)
	}
	e.frames[as] = e.frames[plain]
}

// saves is by how much a frame is shorter for being compressed.
func (e *entry) saves(as form) int {
	if as&deflated == 0 {
		return 0
	}
	return int(e.saved[as&^deflated])
}

func (e *entry) size() int { return 2*len(e.n.Data) + entryOverhead }

func newLine(partitions, first, count, most int, d *deflater) *line {
	return &line{
		partitions: partitions, first: first, most: most, deflater: d,
		at: make([]cursor.Position, count), floor: make([]cursor.Position, count),
	}
}

// extend moves the line on by notifications of one partition. The caller holds mu.
func (l *line) extend(partition int, list []relay.Notification) []entry {
	batch := make([]entry, len(list))
	at := &l.at[partition-l.first]
	for i := range list {
		e := &batch[i]
		e.n, e.slot, e.prev, e.at = &list[i], partition-l.first, *at, *at
		if p, ok := cursor.ParsePosition(list[i].Cursor); ok {
			e.at, *at = p, p
		}
		l.kept = append(l.kept, e)
		l.size += e.size()
	}
	l.evict()
	if l.moved != nil {
		close(l.moved)
		l.moved = nil
	}
	return batch
}

// evict forgets the oldest entries where there are too many.
func (l *line) evict() {
	for l.size > l.most && l.head < len(l.kept) {
		e := l.kept[l.head]
		l.kept[l.head] = nil
		l.floor[e.slot] = e.at
		l.size -= e.size()
		l.head++
		l.base++
	}
	if l.head > 256 && l.head > len(l.kept)/2 {
		n := copy(l.kept, l.kept[l.head:])
		clear(l.kept[n:])
		l.kept, l.head = l.kept[:n], 0
	}
}

// restart says that a partition goes on from another position than it was at. What was kept is forgotten: who comes back
// asks the log itself. The caller holds mu.
func (l *line) restart(partition int, at cursor.Position) {
	l.base += uint64(len(l.kept) - l.head)
	l.kept, l.head, l.size = nil, 0, 0
	l.at[partition-l.first] = at
	copy(l.floor, l.at)
	l.breaks++
	if l.moved != nil {
		close(l.moved)
		l.moved = nil
	}
}

// wait returns what the next broadcast closes. The caller holds mu.
func (l *line) wait() <-chan struct{} {
	if l.moved == nil {
		l.moved = make(chan struct{})
	}
	return l.moved
}

// cursor is the text of positions, valid until the next call. The caller holds mu.
func (l *line) cursor(at []cursor.Position) []byte {
	l.text = cursor.Append(l.text[:0], l.partitions, l.first, at)
	return l.text
}

// frame is an entry's frame in one form for all clients who have seen the log up to these positions. The caller holds mu.
func (l *line) frame(e *entry, as form, at []cursor.Position, live bool) []byte {
	if e.frames[as] == nil {
		var text []byte
		if as&(withCursor|asEvent) != 0 {
			text = l.cursor(at)
		}
		e.makeFrame(as, text, l.deflater, live)
	}
	return e.frames[as]
}

// end is the number of the next entry. The caller holds mu.
func (l *line) end() uint64 { return l.base + uint64(len(l.kept)-l.head) }

func (l *line) entry(number uint64) *entry { return l.kept[l.head+int(number-l.base)] }

// mark is where somebody is in a line who has seen the log up to his own positions.
type mark struct {
	// next is the number of the first entry that may be new to him.
	next uint64
	// ahead counts the partitions of which he has seen more than the line's first next entries hold. Where it is zero he
	// has seen exactly these, and the line's cursors are his.
	ahead int
	// unproved are the partitions whose entry at his position was not met: it may not be in the log at all.
	unproved []int
	// missing is a partition of which he lacks something that is not kept, or -1.
	missing int
}

// find walks back from the end of the line to where somebody with these positions is. The caller holds mu.
func (l *line) find(at []cursor.Position) mark {
	now := append([]cursor.Position(nil), l.at...)
	met := make([]bool, len(at))
	behind := 0
	for s := range at {
		met[s] = now[s] == at[s]
		if now[s].Compare(at[s]) > 0 {
			behind++
		}
	}
	p := mark{next: l.end(), missing: -1}
	for ; behind > 0 && p.next > l.base; p.next-- {
		e := l.entry(p.next - 1)
		lacked := now[e.slot].Compare(at[e.slot]) > 0
		now[e.slot] = e.prev
		if lacked && e.prev.Compare(at[e.slot]) <= 0 {
			behind--
		}
		met[e.slot] = met[e.slot] || e.prev == at[e.slot]
	}
	for s := range at {
		switch order := now[s].Compare(at[s]); {
		case order < 0:
			p.ahead++
		case order > 0 && (p.missing < 0 || at[s].Compare(at[p.missing]) < 0): // the one that is furthest behind
			p.missing = s
		}
		if !met[s] {
			p.unproved = append(p.unproved, s)
		}
	}
	return p
}

package hub

import (
	"sync"
	"sync/atomic"

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
	// reached is end, for whoever does not hold mu.
	reached atomic.Uint64
	// numbers are those of what is kept of each partition.
	numbers [][]uint64
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
	size  int // what it takes, while a line keeps it
}

// entryOverhead is about what an entry takes beside its notification and the frames of that.
const entryOverhead = 384

// makeFrame makes a frame that all clients of a form share, and returns how many bytes that has taken. The cursor is needed
// where they get one.
func (e *entry) makeFrame(as form, cursor []byte, d *deflater, live bool) (took int) {
	if as&deflated == 0 {
		e.frames[as] = newFrame(e.n.Data, as, cursor)
		return len(e.frames[as])
	}
	plain, saved := as&^deflated, 0
	e.frames[as] = compose(func(parts ...[]byte) (frame []byte) {
		frame, saved = d.frame(live, parts)
		return frame
	}, e.n.Data, as, cursor)
	e.saved[plain] = int32(saved)
	if e.frames[as] != nil {
		return len(e.frames[as])
	}
	if e.frames[plain] == nil {
		e.frames[plain] = newFrame(e.n.Data, plain, cursor)
		took = len(e.frames[plain])
	}
	e.frames[as] = e.frames[plain]
	return took
}

// saves is by how much a frame is shorter for being compressed.
func (e *entry) saves(as form) int {
	if as&deflated == 0 {
		return 0
	}
	return int(e.saved[as&^deflated])
}

func newLine(partitions, first, count, most int, d *deflater) *line {
	return &line{
		partitions: partitions, first: first, most: most, deflater: d,
		at: make([]cursor.Position, count), floor: make([]cursor.Position, count), numbers: make([][]uint64, count),
	}
}

// extend moves the line on by notifications of one partition. The caller holds mu.
func (l *line) extend(partition int, list []relay.Notification) []entry {
	batch := make([]entry, len(list))
	at := &l.at[partition-l.first]
	for i := range list {
		e := &batch[i]
		e.n, e.slot, e.prev, e.at = &list[i], partition-l.first, *at, *at
		if p, ok := cursor.ParseEntry(list[i].Cursor, list[i].ID); ok {
			e.at, *at = p, p
		}
		l.numbers[e.slot] = append(l.numbers[e.slot], l.end())
		l.kept = append(l.kept, e)
		e.size = len(e.n.Data) + entryOverhead
		l.size += e.size
	}
	l.reached.Store(l.end())
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
		l.floor[e.slot], l.numbers[e.slot] = e.at, l.numbers[e.slot][1:]
		l.size -= e.size
		e.size = 0
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
	clear(l.numbers)
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
		took := e.makeFrame(as, text, l.deflater, live)
		if e.size > 0 { // the next broadcast forgets others for it
			e.size += took
			l.size += took
		}
	}
	return e.frames[as]
}

// end is the number of the next entry. The caller holds mu.
func (l *line) end() uint64 { return l.base + uint64(len(l.kept)-l.head) }

func (l *line) entry(number uint64) *entry { return l.kept[l.head+int(number-l.base)] }
